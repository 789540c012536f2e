"""The audits of a merge: what each one checked, kept as rows that people and the API can read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from model.declaration import FieldSpec
from model.errors import AuditFailedError
from model.schema import Field, RowSchema

AUDITS_TABLE: Final = "merge_audits"

# A row a merge and check. ``ingest_time`` is when it was written, as in every table of rows.
AUDIT_SCHEMA: Final = RowSchema(
    (
        Field("source", "STRING", description="The data source that was merged."),
        Field("merge", "STRING", description="The id of the merge. The merge has one row for each audit."),
        Field("until", "TIMESTAMP", description="The merge read the rows that were staged up to this time."),
        Field("name", "STRING", description="The audit: keys_unique, counts_reconciled or freshness."),
        Field("is_passed", "BOOL", description="Whether the audit passed. If not, the merge committed nothing."),
        Field("expected", "INT64", description="The number that the audit expected."),
        Field("found", "INT64", description="The number that the audit found."),
        Field("details", "JSON", description="More figures from the audit."),
        Field("ingest_time", "TIMESTAMP", description="When the audit ran."),
    ),
    "The audits that merges ran before their commits.",
)


def audits_table(archive_table: str) -> str:
    """Return the name of the table of audits, which lies in the archive's dataset.

    Example:
        >>> audits_table("backup.messages")
        'backup.merge_audits'
    """
    return f"{archive_table.split('.')[-2]}.{AUDITS_TABLE}"


AuditName = Literal["keys_unique", "counts_reconciled", "freshness"]


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit of a source's merge. Audits run before the commit."""

    # keys_unique counts rows (found) against keys (expected). counts_reconciled counts the rows that are there
    # against those that have to be. freshness compares the newest row of what was merged, in microseconds since
    # 1970, with the newest that reporting has then; 0 stands for none.

    name: Annotated[AuditName, FieldSpec(description="The audit.")]
    is_passed: Annotated[
        bool, FieldSpec(description="Whether the audit passed. If not, the reporting table did not change.")
    ]
    expected: Annotated[int, FieldSpec(description="The number that the audit expected.")]
    found: Annotated[int, FieldSpec(description="The number that the audit found.")]
    details: Annotated[Mapping[str, Any], FieldSpec(description="More figures from the audit.")]

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)

    def to_row(self, source: str, merge: str, until: datetime) -> dict[str, Any]:
        """Return it as a row of :data:`AUDIT_SCHEMA`; ``ingest_time`` is now."""
        return {
            **self.to_json(),
            "source": source,
            "merge": merge,
            "until": until,
            "details": json.dumps(dict(self.details)),
            "ingest_time": datetime.now(UTC),
        }


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What a merge is about to leave behind, counted; rows are those of the partitions that change.

    ``changed`` keys were staged, ``newer`` of them change reporting, ``older`` of them don't. Of the rows before,
    ``replaced`` go, and ``added`` come. Newest are ingest times in microseconds since 1970, 0 for none.
    """

    changed: int
    newer: int
    older: int
    rows_before: int
    replaced: int
    added: int
    rows_after: int
    keys_after: int
    newest_staged_us: int
    newest_merged_us: int

    def audits(self) -> tuple[Audit, ...]:
        """Return what the counts prove, check by check."""
        expected = self.rows_before - self.replaced + self.newer
        is_reconciled = (
            self.changed == self.newer + self.older and self.added == self.newer and self.rows_after == expected
        )
        is_fresh = self.newest_merged_us >= self.newest_staged_us
        counts = asdict(self)
        return (
            Audit("keys_unique", self.keys_after == self.rows_after, self.keys_after, self.rows_after, {}),
            Audit("counts_reconciled", is_reconciled, expected, self.rows_after, counts),
            Audit("freshness", is_fresh, self.newest_staged_us, self.newest_merged_us, {}),
        )


_FAULTS: Final[Mapping[AuditName, str]] = {
    "keys_unique": "a key has more than one row",
    "counts_reconciled": "some changed keys are in no partition, or rows were lost or duplicated",
    "freshness": "the newest staged row is missing",
}


def check_audits(source: str, audits: Sequence[Audit]) -> None:
    """Let nothing that does not add up be committed.

    Raises:
        AuditFailedError: one has failed; ``details["audits"]`` has all of them.
    """
    failed = [audit for audit in audits if not audit.is_passed]
    if failed:
        faults = "; ".join(
            f"{_FAULTS[audit.name]} ({audit.name}: expected {audit.expected}, found {audit.found})"
            for audit in failed
        )
        raise AuditFailedError(
            f"The audits of the merge of {source} failed: {faults}. Nothing was committed.",
            source=source,
            audits=[audit.to_json() for audit in audits],
        )
