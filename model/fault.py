"""The fault that a record keeps."""

from dataclasses import dataclass, replace
from typing import Self

from model.errors import RefeedError, StorageFullError
from model.failure import safe_message


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Why something failed, was refused or was taken back: a stable code and a sentence."""

    code: str
    message: str

    @classmethod
    def of(cls, error: RefeedError | OSError, context: str = "") -> Self:
        """Return the fault of an error; an OSError is a full disk, its words after ``context``."""
        if isinstance(error, RefeedError):
            return cls(error.code, error.message)
        return cls(StorageFullError.code, f"{context}{error}")

    def shown(self) -> Self:
        """Return the fault as a store keeps it, without an engine's words, which may quote values of messages.

        A NUL and one half of a surrogate pair, which no database takes, become a question mark.
        """
        message = safe_message(self.code, self.message).replace("\0", "?")
        return replace(self, message=message.encode(errors="replace").decode())

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
