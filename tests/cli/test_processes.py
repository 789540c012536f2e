import pytest

from cli.processes import is_listening


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:no", "127.0.0.1:99999"])
def test_what_is_no_address_does_not_listen(address: str) -> None:
    assert not is_listening(address)
