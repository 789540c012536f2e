"""Cloud KMS's decrypt over REST, with real AES-GCM under each key, and faults that a test orders.

What it answers is as documented:
https://cloud.google.com/kms/docs/reference/rest/v1/projects.locations.keyRings.cryptoKeys/decrypt
"""

import base64
import json
import os
from collections import deque
from typing import Any, Self

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.worlds.http import Answer, Call, answering

KEY = "projects/shop/locations/europe/keyRings/refeed/cryptoKeys/collector"


class KmsServer:
    """The service at ``endpoint``; ``faults`` are met by the next calls, ``calls`` are the bodies that came."""

    def __init__(self) -> None:
        self._keys: dict[str, AESGCM] = {}
        self.faults: deque[str] = deque()
        self.calls: list[dict[str, Any]] = []
        self._http = answering(self._serve)

    def __enter__(self) -> Self:
        self.endpoint = self._http.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.__exit__(*raised)

    def _serve(self, call: Call) -> Answer:
        status, answer = self.answer(call.path, json.loads(call.body))
        return Answer(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def encrypt(self, plaintext: bytes, key: str = KEY) -> bytes:
        """Return the ciphertext, as ``gcloud kms encrypt`` writes it to a file."""
        cipher = self._keys.setdefault(key, AESGCM(AESGCM.generate_key(256)))
        nonce = os.urandom(12)
        return nonce + cipher.encrypt(nonce, plaintext, None)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append(body)
        fault = self.faults.popleft() if self.faults else ""
        if fault == "unavailable":
            return 503, _error(503, "UNAVAILABLE", "The service is currently unavailable.")
        key = path.removeprefix("/v1/").removesuffix(":decrypt")
        if not path.endswith(":decrypt") or key not in self._keys:
            message = (
                "Permission 'cloudkms.cryptoKeyVersions.useToDecrypt' denied on resource (or it may not exist)."
            )
            return 403, _error(403, "PERMISSION_DENIED", message)
        ciphertext = base64.b64decode(body["ciphertext"])
        # "KeyManagementService will report an error if the checksum verification fails."
        if int(body["ciphertextCrc32c"]) != google_crc32c.value(ciphertext):
            return 400, _error(400, "INVALID_ARGUMENT", "The checksum in field ciphertext_crc32c did not match.")
        try:
            plaintext = self._keys[key].decrypt(ciphertext[:12], ciphertext[12:], None)
        except (InvalidTag, ValueError):
            return 400, _error(400, "INVALID_ARGUMENT", "Decryption failed: the ciphertext is invalid.")
        checksum = google_crc32c.value(plaintext) ^ (fault == "damaged")
        return 200, {
            "plaintext": base64.b64encode(plaintext).decode(),
            "plaintextCrc32c": str(checksum),
            "usedPrimary": True,
        }


def _error(code: int, status: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "status": status, "message": message}}
