"""A query that passed the gate, in the words of the lake's engine (DuckDB)."""

from collections.abc import Mapping
from dataclasses import dataclass

from model.table import TableRead
from sql.from_binder import LAKE_VIEW
from sql.validate import ValidatedQuery
from sql.violation import QueryRefusedError

__all__ = ["LAKE_VIEW", "LakeQuery", "render_lake_query"]


@dataclass(frozen=True, slots=True)
class LakeQuery:
    """SQL over the view ``refeed_archive`` and those of ``extra_reads``, for a session in UTC.

    Parameters are JSON-ready values; without ``reads_archive`` the archive's files are not needed.
    """

    sql: str
    parameters: Mapping[str, object]
    reads_archive: bool = True
    extra_reads: tuple[TableRead, ...] = ()


def render_lake_query(query: ValidatedQuery) -> LakeQuery:
    """Return ``query`` for the lake: same rows, same columns, plus those that a replay keeps of each message.

    Raises:
        QueryRefusedError: the lake's engine can't do part of it; each part has the code ``lake_unsupported``.
    """
    if query.lake_violations:
        raise QueryRefusedError(query.lake_violations)
    return LakeQuery(query.lake_sql, dict(query.lake_parameters), query.reads_archive, query.extra_reads)
