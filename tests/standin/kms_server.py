"""Cloud KMS's decrypt over REST, with real AES-GCM under each key, and faults that a test orders.

What it answers is as documented:
https://cloud.google.com/kms/docs/reference/rest/v1/projects.locations.keyRings.cryptoKeys/decrypt
"""

import base64
import json
import os
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = "projects/shop/locations/europe/keyRings/refeed/cryptoKeys/collector"


class KmsServer:
    """The service at ``endpoint``; ``faults`` are met by the next calls, ``calls`` are the bodies that came."""

    def __init__(self) -> None:
        self._keys: dict[str, AESGCM] = {}
        self.faults: deque[str] = deque()
        self.calls: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = server.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

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
