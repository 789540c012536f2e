import ssl

import httpx


def context_of(client: httpx.Client) -> ssl.SSLContext:
    return client._transport._pool._ssl_context


def test_clients_that_trust_the_system_share_its_certificates_and_others_have_their_own(monkeypatch):
    own = ssl.create_default_context()
    with httpx.Client() as one, httpx.Client() as two, httpx.Client(verify=own) as third:
        assert context_of(one) is context_of(two)
        assert context_of(one).verify_mode == ssl.CERT_REQUIRED
        assert context_of(third) is own
        with httpx.Client(verify=False) as fourth:
            assert context_of(fourth).verify_mode == ssl.CERT_NONE
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    with httpx.Client() as elsewhere:
        assert context_of(elsewhere) is not context_of(one)
