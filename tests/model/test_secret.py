import base64

import pytest

from model.errors import KeyServiceError, SettingsError
from model.secret import read_secret
from model.settings import read_settings

KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"


def reverse(key: str, ciphertext: bytes) -> bytes:
    """Stands for a key service: tests of the real protocol are with its connector."""
    if key != KEY:
        raise KeyServiceError("Cloud KMS refuses: no such key")
    return ciphertext[::-1]


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "plain").write_text("from-a-file\n")
    (tmp_path / "wrapped").write_bytes(b"elif-a-morf")
    return {"HOME": str(tmp_path), "PLAIN": "from-the-environment", "WRAPPED": base64.b64encode(b"vne").decode()}


@pytest.mark.parametrize(
    ("reference", "secret"),
    [
        ("env:PLAIN", "from-the-environment"),
        ("file:HOME/plain", "from-a-file"),
        (f"gcp-kms:{KEY}:file:HOME/wrapped", "from-a-file"),
        (f"gcp-kms:{KEY}:env:WRAPPED", "env"),
    ],
)
def test_a_setting_may_be_a_reference_to_its_secret(environment, reference, secret):
    reference = reference.replace("HOME", environment["HOME"])
    assert read_secret(reference, environment, reverse) == secret
    settings = read_settings({**environment, "REFEED_SECRET": reference}, decrypt=reverse)
    assert settings.replay_secret() == secret
    assert secret not in repr(settings)


@pytest.mark.parametrize(
    "reference",
    [
        "env:NOT_THERE",
        "file:/not/there",
        "file:/",
        "gcp-kms:key:env:PLAIN",
        f"gcp-kms:{KEY}:env:PLAIN",
        f"gcp-kms:{KEY}2:env:WRAPPED",
        f"gcp-kms:{KEY}:s3cret-itself",
        "env:",
    ],
)
def test_a_reference_that_leads_to_nothing_is_a_fault_and_never_the_secret_itself(environment, reference):
    with pytest.raises(SettingsError) as caught:
        read_settings({**environment, "REFEED_SECRET": reference}, decrypt=reverse)
    assert caught.value.details["faults"][0].startswith("REFEED_SECRET=(hidden): ")
    assert "from-the-environment" not in caught.value.message
    assert "s3cret" not in caught.value.message


def test_a_secret_that_was_not_decrypted_is_never_used_as_it_stands(environment):
    settings = read_settings({**environment, "REFEED_SECRET": f"gcp-kms:{KEY}:env:WRAPPED"})
    with pytest.raises(SettingsError, match="Refeed could not decrypt the secret"):
        settings.replay_secret()
    assert not (settings.home / "secret").exists()


def test_a_secret_with_no_reference_stays_as_it_is(environment):
    settings = read_settings({**environment, "REFEED_SECRET": "s3cret: with a colon"}, decrypt=reverse)
    assert settings.replay_secret() == "s3cret: with a colon"
