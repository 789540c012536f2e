"""The version of a file or an object, by which a writer's next content is told from the last."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One content of a file; ``generation`` is another one after each write, and says nothing about the order."""

    generation: str
    size_bytes: int
