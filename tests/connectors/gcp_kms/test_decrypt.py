import pytest

from connectors.gcp_kms.decrypt import decrypt
from model.errors import KeyServiceError
from tests.standin.kms_server import KEY, KmsServer


@pytest.fixture
def kms():
    with KmsServer() as server:
        yield server


@pytest.mark.parametrize("plaintext", [b"s3cret", b"\x00\xff" * 500, "pass wörd".encode()])
def test_what_a_key_encrypted_comes_back_byte_for_byte(kms, plaintext):
    assert decrypt(KEY, kms.encrypt(plaintext), endpoint=kms.endpoint) == plaintext


@pytest.mark.parametrize("fault", ["damaged", "unavailable"])
def test_a_damaged_answer_and_an_outage_are_asked_again_and_end_in_an_error(kms, fault):
    ciphertext = kms.encrypt(b"s3cret")
    kms.faults.extend([fault, fault])
    assert decrypt(KEY, ciphertext, endpoint=kms.endpoint) == b"s3cret"
    kms.faults.extend([fault] * 3)
    with pytest.raises(KeyServiceError, match="damaged bytes" if fault == "damaged" else "UNAVAILABLE"):
        decrypt(KEY, ciphertext, endpoint=kms.endpoint)


def test_a_refusal_is_told_at_once_in_the_service_s_words(kms):
    ciphertext = kms.encrypt(b"s3cret")
    with pytest.raises(KeyServiceError, match="ciphertext is invalid"):
        decrypt(KEY, ciphertext[:-1], endpoint=kms.endpoint)
    with pytest.raises(KeyServiceError, match="useToDecrypt"):
        decrypt(KEY + "2", ciphertext, endpoint=kms.endpoint)
    assert len(kms.calls) == 2


def test_a_service_that_is_away_is_an_error_of_ours(kms):
    endpoint = "http://127.0.0.1:1"
    with pytest.raises(KeyServiceError, match="does not answer"):
        decrypt(KEY, b"x", endpoint=endpoint)
