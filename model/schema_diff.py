"""What differs between two versions of a table's columns."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from model.schema import Field, RowSchema
from model.widening import is_wider


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field whose type or mode differs; ``is_wider`` holds where the new one holds every cell of the old one."""

    path: str
    before: str
    after: str
    is_wider: bool


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """Fields that were added, removed or changed, by their dotted paths; of an added record, it alone is named."""

    added: list[dict[str, str]] = field(default_factory=list)
    removed: list[dict[str, str]] = field(default_factory=list)
    changed: list[FieldChange] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


def compare_schemas(before: RowSchema, after: RowSchema) -> SchemaDiff:
    """Return what makes ``after`` another schema than ``before``; descriptions, tags and order are no difference.

    Example:
        >>> old = RowSchema((Field("id", "INT64"), Field("gone", "BOOL")))
        >>> new = RowSchema((Field("id", "STRING"), Field("tags", "STRING", "REPEATED")))
        >>> found = compare_schemas(old, new)
        >>> found.added, found.removed
        ([{'path': 'tags', 'type': 'REPEATED STRING'}], [{'path': 'gone', 'type': 'BOOL'}])
        >>> found.changed
        [FieldChange(path='id', before='INT64', after='STRING', is_wider=True)]
    """
    found = SchemaDiff()
    _compare(before.fields, after.fields, "", found)
    return found


def _compare(before: Sequence[Field], after: Sequence[Field], prefix: str, found: SchemaDiff) -> None:
    others = {one.name.lower(): one for one in after}
    for one in before:
        path = f"{prefix}{one.name}"
        other = others.pop(one.name.lower(), None)
        if other is None:
            found.removed.append({"path": path, "type": _kind(one)})
        elif _kind(one) != _kind(other):
            found.changed.append(FieldChange(path, _kind(one), _kind(other), _holds(one, other)))
        else:
            _compare(one.fields, other.fields, f"{path}.", found)
    found.added.extend({"path": f"{prefix}{one.name}", "type": _kind(one)} for one in others.values())


def _kind(one: Field) -> str:
    return one.type if one.mode == "NULLABLE" else f"{one.mode} {one.type}"


def _holds(one: Field, other: Field) -> bool:
    return is_wider(one, other) and (other.mode != "REQUIRED" or one.mode == "REQUIRED")
