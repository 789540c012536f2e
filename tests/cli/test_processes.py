import socket

import pytest

from cli.processes import check_port_free, free_port, is_listening
from model.errors import PortTakenError


def test_a_taken_port_is_named_with_the_option_that_changes_it() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert is_listening(f"127.0.0.1:{port}")
        with pytest.raises(PortTakenError, match=f"Port {port} .*--pubsub-port"):
            check_port_free(port, "--pubsub-port")


def test_a_free_port_is_free() -> None:
    port = free_port()
    check_port_free(port, "--port")
    assert not is_listening(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:no", "127.0.0.1:99999"])
def test_what_is_no_address_does_not_listen(address: str) -> None:
    assert not is_listening(address)
