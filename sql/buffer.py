"""Rows in BigQuery's write buffer, whose _PARTITIONTIME is NULL: who leaves them out, and what adds them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Final

from model.table import PARTITION_DATE, PARTITION_TIME, Partitioning
from sql.binder import Scan
from sql.bounds import BEGINNING, END, EVERYTHING, NOTHING, Leaf, Span, leaves, prove
from sql.constants import next_start, truncate
from sql.syntax import Call, Is, Node, Path
from sql.values import Value

_INGEST_TIME: Final = "ingest_time"
# A list of more days than this is left as it is written.
_MAX_SPANS: Final = 50
# What of a NULL is something else: who writes it has thought of rows without a partition.
_NULL_SAFE: Final = frozenset({"IFNULL", "COALESCE"})

_Edit = tuple[int, int, str]


def leaves_out(scan: Scan, values: Mapping[int, Value]) -> bool:
    """Whether rows in the write buffer fail the filters of ``scan``, or may do so for all that is understood."""
    if prove(scan.filters, scan.numbers, values).buffered == NOTHING:
        return True
    known = {id(path) for leaf in _leaves(scan, values) for path in _paths(leaf.node, scan, values)}
    return any(id(path) not in known for item in scan.filters for path in _paths(item, scan, values))


def with_buffer(
    text: str, scans: Iterable[Scan], values: Mapping[int, Value], partitioning: Partitioning
) -> str | None:
    """Return ``text`` with rows of the write buffer taken for what they will be: rows of their ingest_time.

    In front of each comparison of a pseudo column comes the same said in constants, of the partition alone and of
    ``ingest_time`` alone: the first prunes partitions and satisfies ``require_partition_filter``, which asks for
    a condition that names the partitioning column only
    (https://cloud.google.com/bigquery/docs/querying-partitioned-tables, "Require a partition filter in queries").
    None where a comparison can't be written so; the answer goes through the gate before it runs.
    """
    edits: set[_Edit] = set()
    for scan in scans:
        for leaf in _leaves(scan, values):
            found = _edits(text, leaf, list(_paths(leaf.node, scan, values)), partitioning)
            if found is None:
                return None
            edits.update(found)
    # From the end, so that places stay; what is put in front of a column comes after the column is changed.
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text if edits else None


def _leaves(scan: Scan, values: Mapping[int, Value]) -> Iterator[Leaf]:
    return leaves(scan.filters, scan.numbers, values)


def _edits(text: str, leaf: Leaf, paths: Sequence[Path], partitioning: Partitioning) -> list[_Edit] | None:
    if leaf.spans == NOTHING or len(leaf.spans) > _MAX_SPANS:
        return None
    edits: list[_Edit] = []
    prefixes = set()
    for path in paths:
        last = path.names[-1]
        name = last.text.upper()
        end = last.at + len(last.text)
        prefix = text[path.at : last.at]
        if text[last.at : end].upper() != name or name not in (PARTITION_TIME, PARTITION_DATE):
            # A query around the scan has given the column another name: ingest_time may not be there.
            return None
        cut = f"TIMESTAMP_TRUNC({prefix}{_INGEST_TIME}, {partitioning.upper()})"
        instead = cut if name == PARTITION_TIME else f"DATE({cut})"
        edits.append((path.at, end, f"IFNULL({prefix}{name}, {instead})"))
        prefixes.add(prefix)
    if len(prefixes) != 1:
        return None
    if leaf.spans != EVERYTHING:
        [prefix] = prefixes
        column = f"{prefix}{PARTITION_TIME}"
        later = [Span(_ceiling(s.start, partitioning), _ceiling(s.end, partitioning)) for s in leaf.spans]
        edits.append(
            (
                leaf.node.at,
                leaf.node.at,
                (
                    f"({column} IS NULL OR {_ranges(column, leaf.spans)}) AND "
                    f"({column} IS NOT NULL OR {_ranges(f'{prefix}{_INGEST_TIME}', later)}) AND "
                ),
            )
        )
    return edits


def _ceiling(moment: datetime, partitioning: Partitioning) -> datetime:
    """Return the first start of a partition at or after ``moment``."""
    if moment in (BEGINNING, END):
        return moment
    start = truncate(moment, partitioning.upper())
    return start if start == moment else next_start(moment, partitioning.upper())


def _ranges(column: str, spans: Sequence[Span]) -> str:
    return " OR ".join(_range(column, span) for span in spans)


def _range(column: str, span: Span) -> str:
    ends = [
        f"{column} {operator} TIMESTAMP '{moment.isoformat(' ')}'"
        for operator, moment in ((">=", span.start), ("<", span.end))
        if moment not in (BEGINNING, END)
    ]
    return f"({' AND '.join(ends)})"


def _paths(node: object, scan: Scan, values: Mapping[int, Value]) -> Iterator[Path]:
    """Yield where ``node`` names the pseudo column of ``scan``, but where a NULL of it is provided for."""
    if isinstance(node, tuple):
        for item in node:
            yield from _paths(item, scan, values)
    elif isinstance(node, Path):
        value = values.get(id(node))
        time = None if value is None else value.partition
        if time is not None and not time.is_ingest_time and time.scan in scan.numbers:
            yield node
    elif isinstance(node, Node) and not _minds_null(node):
        for member in fields(node):
            yield from _paths(getattr(node, member.name), scan, values)


def _minds_null(node: Node) -> bool:
    if isinstance(node, Call):
        return node.name[-1].upper() in _NULL_SAFE
    return isinstance(node, Is) and node.what == "NULL"
