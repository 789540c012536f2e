"""The signatures of SNS messages: the text that is signed, and its check with a certificate's key."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509.oid import NameOID

# The fields that are signed, in this order; Subject only where the message has one. Message attributes are not.
# https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-verify-message-signature.html
_NOTIFICATION: Final = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION: Final = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
# "SignatureVersion1 - Uses an SHA1 hash of the message. SignatureVersion2 - Uses an SHA256 hash":
# https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
_HASHES: Final[Mapping[str, HashAlgorithm]] = {"1": SHA1(), "2": SHA256()}  # noqa: S303  # nosec B303


def signed_text(message: Mapping[str, str]) -> bytes:
    r"""Return the text that SNS signs of a message: each name and each value on lines of their own.

    Example:
        >>> message = {"Type": "Notification", "Message": "a", "MessageId": "1", "Timestamp": "t", "TopicArn": "x"}
        >>> signed_text(message)
        b'Message\na\nMessageId\n1\nTimestamp\nt\nTopicArn\nx\nType\nNotification\n'
    """
    names = _NOTIFICATION if message["Type"] == "Notification" else _CONFIRMATION
    return "".join(f"{name}\n{message[name]}\n" for name in names if name in message).encode()


def is_signed(message: Mapping[str, str], key: RSAPublicKey) -> bool:
    """Whether the message's signature, of version 1 or 2, is one that ``key`` verifies."""
    algorithm = _HASHES.get(message["SignatureVersion"])
    if algorithm is None:
        return False
    try:
        signature = b64decode(message["Signature"], validate=True)
        key.verify(signature, signed_text(message), PKCS1v15(), algorithm)
    except (InvalidSignature, Base64Error, ValueError):
        return False
    return True


def load_signing_key(pem: bytes, host: str, now: datetime) -> RSAPublicKey:
    """Return the public key of a signing certificate in PEM.

    Raises:
        ValueError: it is no certificate, not one of SNS in the host's domain, or not valid at ``now``.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise ValueError("it is not a certificate with exactly one name") from exc
    # 'sns.amazonaws.com' in older regions, 'sns-signing.REGION.DOMAIN' in newer ones.
    domain = host.split(".", 2)[2]
    common_name = str(name.rfc4514_string()).removeprefix("CN=")
    if not (common_name.startswith("sns") and common_name.endswith(f".{domain}")):
        raise ValueError(f"the certificate belongs to {common_name}")
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise ValueError(f"the certificate is not valid at {now:%Y-%m-%d %H:%M}")
    if not isinstance(key, RSAPublicKey):
        raise ValueError("the certificate's key is not RSA")  # noqa: TRY004  what came is wrong, not its type here
    return key
