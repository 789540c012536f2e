"""What the rows of an entity's table look like, in BigQuery's words, and how a table may come to look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from model.errors import EvolutionRefusedError

FieldType = Literal[
    "STRING",
    "BYTES",
    "INT64",
    "FLOAT64",
    "NUMERIC",
    "BOOL",
    "TIMESTAMP",
    "DATE",
    "TIME",
    "DATETIME",
    "GEOGRAPHY",
    "JSON",
    "RECORD",
]
FieldMode = Literal["NULLABLE", "REQUIRED", "REPEATED"]


@dataclass(frozen=True, slots=True)
class Field:
    """One column, or one field of a RECORD; names are compared without regard to case, as BigQuery does."""

    name: str
    type: FieldType
    mode: FieldMode = "NULLABLE"
    description: str = ""
    policy_tags: tuple[str, ...] = ()
    fields: tuple["Field", ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the field as BigQuery's REST API writes it; what is empty is left out."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "mode": self.mode}
        if self.description:
            found["description"] = self.description
        if self.policy_tags:
            found["policyTags"] = {"names": list(self.policy_tags)}
        if self.fields:
            found["fields"] = [field.to_json() for field in self.fields]
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the field that :meth:`to_json` described."""
        return cls(
            name=fields["name"],
            type=fields["type"],
            mode=fields.get("mode", "NULLABLE"),
            description=fields.get("description", ""),
            policy_tags=tuple(fields.get("policyTags", {}).get("names", ())),
            fields=tuple(cls.from_json(child) for child in fields.get("fields", ())),
        )


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns of a table, in order, and what the table is for."""

    fields: tuple[Field, ...]
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the schema as BigQuery's REST API writes it."""
        return {"description": self.description, "fields": [field.to_json() for field in self.fields]}

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> Self:
        """Return the schema that :meth:`to_json` described."""
        return cls(tuple(Field.from_json(field) for field in schema["fields"]), schema.get("description", ""))

    def names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return [field.name for field in self.fields]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a wanted schema differs from a table's; ``path`` is dotted."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Evolution:
    """How a table becomes what is wanted: the schema to give it, what changes, and what can't.

    With anything in ``refused`` the table must be left as it is: half a change would lose data quietly.
    """

    schema: RowSchema
    changes: tuple[Difference, ...]
    refused: tuple[Difference, ...]


# After the differences that are refused.
REFUSED_ADVICE: Final = (
    "Keep each refused field as it was, and add fields with new names; a query can cast the values. Or give the "
    "source new tables: set staging and reporting in its entry (docs/problems/evolution_refused.md)."
)


def plan_evolution(current: RowSchema, wanted: RowSchema) -> Evolution:
    """Return how a table with ``current`` changes to hold rows of ``wanted``; pure, nothing is touched.

    New columns are added as NULLABLE (or REPEATED), REQUIRED becomes NULLABLE, descriptions and policy tags
    are replaced. A column that is gone and a type or mode that changed are refused. Columns keep their order,
    new ones come last.

    Example:
        >>> old = RowSchema((Field("id", "INT64", "REQUIRED"),))
        >>> new = RowSchema((Field("id", "INT64"), Field("name", "STRING")))
        >>> [str(change.text) for change in plan_evolution(old, new).changes]
        ['REQUIRED becomes NULLABLE', 'is new: STRING NULLABLE']
        >>> [fault.text for fault in plan_evolution(new, old).refused]
        ['was STRING and is gone']
    """
    changes: list[Difference] = []
    refused: list[Difference] = []
    fields = tuple(_evolve(current.fields, wanted.fields, "", changes, refused))
    if wanted.description != current.description:
        changes.append(Difference("", "the table's description changes"))
    return Evolution(RowSchema(fields, wanted.description), tuple(changes), tuple(refused))


def evolution_error(table: str, evolution: Evolution) -> EvolutionRefusedError:
    """Return the error that names everything in which ``table`` can't become what is wanted."""
    return EvolutionRefusedError(
        f"{table} can't be changed to the wanted schema: "
        + "; ".join(f"{fault.path} {fault.text}" for fault in evolution.refused)
        + f". {REFUSED_ADVICE}",
        table=table,
        differences=[{"path": fault.path, "text": fault.text} for fault in evolution.refused],
    )


def _evolve(
    current: Sequence[Field],
    wanted: Sequence[Field],
    prefix: str,
    changes: list[Difference],
    refused: list[Difference],
) -> Iterator[Field]:
    wanted_by_name = {field.name.lower(): field for field in wanted}
    for field in current:
        path = f"{prefix}{field.name}"
        other = wanted_by_name.pop(field.name.lower(), None)
        if other is None:
            refused.append(Difference(path, f"was {field.type} and is gone"))
            yield field
        else:
            yield _evolve_field(field, other, path, changes, refused)
    for field in wanted_by_name.values():
        added = _without_required(field)
        changes.append(Difference(f"{prefix}{field.name}", f"is new: {added.type} {added.mode}"))
        yield added


def _evolve_field(
    field: Field, other: Field, path: str, changes: list[Difference], refused: list[Difference]
) -> Field:
    if field.type != other.type:
        refused.append(Difference(path, f"is {field.type}, but must be {other.type}"))
    if (field.mode == "REPEATED") != (other.mode == "REPEATED"):
        refused.append(Difference(path, f"is {field.mode}, but must be {other.mode}"))
    mode = field.mode
    if field.mode == "REQUIRED" and other.mode == "NULLABLE":
        mode = "NULLABLE"
        changes.append(Difference(path, "REQUIRED becomes NULLABLE"))
    if field.description != other.description:
        changes.append(Difference(path, "its description changes"))
    if field.policy_tags != other.policy_tags:
        changes.append(Difference(path, "its policy tags change"))
    children = tuple(_evolve(field.fields, other.fields, f"{path}.", changes, refused))
    return Field(field.name, field.type, mode, other.description, other.policy_tags, children)


def _without_required(field: Field) -> Field:
    """Return a field that rows written before it can lack."""
    mode: FieldMode = "REPEATED" if field.mode == "REPEATED" else "NULLABLE"
    return replace(field, mode=mode, fields=tuple(_without_required(child) for child in field.fields))
