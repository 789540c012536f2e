"""An SNS of our own for tests: a certificate, messages signed with its key, and the hosts that serve it."""

import json
import uuid
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

ARN: Final = "arn:aws:sns:eu-west-1:123456789012:orders"
HOST: Final = "sns.eu-west-1.amazonaws.com"
CERTIFICATE_URL: Final = f"https://{HOST}/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
SUBSCRIBE_URL: Final = f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={ARN}&Token=2336412f37"
# As AWS has them: docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-verify-message-signature.html
_SIGNED: Final = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
_SIGNED["UnsubscribeConfirmation"] = _SIGNED["SubscriptionConfirmation"]


class SnsWorld:
    """Signs messages as SNS does, and answers for its hosts; ``called`` are the URLs that were asked for."""

    def __init__(self, name: str = "sns.amazonaws.com", days: int = 30) -> None:
        self.key = generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .sign(self.key, SHA256())
        )
        self.pem = certificate.public_bytes(Encoding.PEM)
        self.called: list[str] = []
        self.status = 200
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.called.append(str(request.url))
        return httpx.Response(self.status, content=self.pem, headers={"location": "http://169.254.169.254/"})

    def sign(self, message: dict[str, Any], version: str = "2") -> dict[str, Any]:
        names = _SIGNED[message["Type"]]
        text = "".join(f"{name}\n{message[name]}\n" for name in names if message.get(name) is not None)
        algorithm = SHA1() if version == "1" else SHA256()
        signature = b64encode(self.key.sign(text.encode(), PKCS1v15(), algorithm)).decode()
        return {"SigningCertURL": CERTIFICATE_URL, **message, "SignatureVersion": version, "Signature": signature}

    def notification(self, text: str = '{"a": 1}', *, version: str = "2", **fields: Any) -> dict[str, Any]:
        """Return a signed notification in the shape of AWS's own example.

        https://docs.aws.amazon.com/sns/latest/dg/http-notification-json.html
        """
        return self.sign(
            {
                "Type": "Notification",
                "MessageId": str(uuid.uuid4()),
                "TopicArn": ARN,
                "Message": text,
                "Timestamp": timestamp(),
                "UnsubscribeURL": f"https://{HOST}/?Action=Unsubscribe&SubscriptionArn={ARN}:c9135db0",
                **fields,
            },
            version,
        )

    def confirmation(self, kind: str = "SubscriptionConfirmation", **fields: Any) -> dict[str, Any]:
        """Return a signed confirmation.

        https://docs.aws.amazon.com/sns/latest/dg/http-subscription-confirmation-json.html
        """
        return self.sign(
            {
                "Type": kind,
                "MessageId": str(uuid.uuid4()),
                "Token": "2336412f37",
                "TopicArn": ARN,
                "Message": f"You have chosen to subscribe to {ARN}.\nTo confirm, visit the SubscribeURL.",
                "SubscribeURL": SUBSCRIBE_URL,
                "Timestamp": timestamp(),
                **fields,
            }
        )


def timestamp(ago: float = 0) -> str:
    """Return a moment as SNS writes it."""
    at = datetime.now(UTC) - timedelta(seconds=ago)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_of(message: dict[str, Any]) -> bytes:
    """Return a request's body as SNS sends it."""
    return json.dumps(message, indent=2).encode()
