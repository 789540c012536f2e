"""Events that Pub/Sub refuses for good: a file of lines that 'refeed publish' reads, up to a bound."""

import base64
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from local.files import sync_folder, write_all
from model.errors import QueueFullError
from model.message import Message

MAX_REFUSED_BYTES: Final = 100_000_000


class RefusedFile:
    """Appends refused events durably, from any thread; the file may be moved away at any time."""

    def __init__(self, path: Path, max_bytes: int = MAX_REFUSED_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def append(self, topic: str, message: Message, reason: str) -> None:
        """Keep a message with the reason for which Pub/Sub refused it.

        Raises:
            QueueFullError: the file has no room for it; nothing was written.
            OSError: the disk did not take it; nothing was written.
        """
        line: dict[str, object] = {
            "topic": topic,
            "reason": reason,
            "attributes": message.attributes,
            "data_base64": base64.b64encode(message.data).decode(),
        }
        if message.ordering_key:
            line["ordering_key"] = message.ordering_key
        text = f"{json.dumps(line)}\n".encode()
        with self._lock:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                if size + len(text) > self._max_bytes:
                    raise QueueFullError(
                        f"{self.path} is full. Move the file to another folder, so that the collector can "
                        f"store refused events again."
                    )
                try:
                    write_all(descriptor, text, size)
                    os.fsync(descriptor)
                    if not size:
                        # Else a power cut may take the name of a file that was just made.
                        sync_folder(self.path.parent)
                except OSError:
                    # Half a line would spoil the next one.
                    with suppress(OSError):
                        os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
