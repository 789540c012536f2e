"""What the parts of every kind of manifest share: strict pydantic models, and how a fault is told."""

from pydantic import BaseModel, ConfigDict

# Where a fault is, and a sentence.
Found = tuple[tuple[str | int, ...], str]


class ManifestPart(BaseModel):
    """A part of a manifest: strictly typed, frozen, and without fields that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
