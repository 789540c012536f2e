"""The figures of a query over a lake: one query for the sums, one for the first rows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from connectors.lake.engine import quote_text
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_process import QueryProcesses, Statement
from model.message import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    REPLAY_TAGS,
)
from sql.dialect import render_lake_query
from sql.validate import ValidatedQuery
from warehouse.figures import MAX_GROUPS, MAX_SAMPLES, MAX_SHOWN_BYTES, QueryFigures, QueryNote

# What an attribute takes on the wire beside its texts, and all tags together with theirs.
_ENTRY_BYTES: Final = 8
_TAGS_BYTES: Final = 1024
# The tags whose values a query need not give: topic, message_id, publish_time.
_OPTIONAL_TAGS: Final = ("topic", "message_id", "publish_time")


def read_figures(
    query: ValidatedQuery,
    snapshot: ArchiveSnapshot,
    processes: QueryProcesses,
    limits: QueryLimits,
    *,
    added: Mapping[str, str],
) -> QueryFigures:
    """Run the query in a process of its own, once for its sums and once for its first rows.

    Messages have ``added`` attributes beside their own and the tags. The lake bills nobody.

    Raises:
        QueryError: the query fails, or needs more than it may use.
    """
    statements = _render_statements(query, snapshot, added)
    groups, samples, *look_up = (table.to_pylist() for table in processes.run(snapshot, statements, limits))
    sums = _Sums(groups)
    look_up_bytes = int(look_up[0][0]["bytes"]) if look_up else 0
    size = int(sums.total["bytes"])
    return QueryFigures(
        bytes_scanned=snapshot.size_bytes + look_up_bytes,
        rows=sums.total["rows"],
        bytes=size,
        message_bytes=size + int(sums.total["attribute_bytes"]),
        selection_bytes=size,
        rows_by_topic=sums.by_topic,
        rows_by_hour=sums.by_hour,
        first_publish_time=sums.total["first"],
        last_publish_time=sums.total["last"],
        is_cut=sums.is_cut,
        without_room=sums.total["without_room"],
        without_text=sums.total["without_text"],
        refused=sums.total["refused"],
        rewritten=sums.total["rewritten"],
        samples=samples,
        notes=_notes(query, look_up_bytes),
    )


def _notes(query: ValidatedQuery, look_up_bytes: int) -> list[QueryNote]:
    if not query.looks_up_columns:
        return []
    names = ", ".join(query.missing_columns)
    message = (
        f"The query does not return {names}. Refeed looks up these columns in the archive by "
        f"message_id, within the window. This reads {look_up_bytes:,} bytes more. If possible, "
        "add the columns to the query."
    )
    return [QueryNote("columns_looked_up", message)]


def _render_statements(
    query: ValidatedQuery, snapshot: ArchiveSnapshot, added: Mapping[str, str]
) -> list[Statement]:
    """Return the queries for the sums, for the samples and, where columns are looked up, for their bytes."""
    lake, columns = render_lake_query(query), _columns(query)
    statements = [
        Statement(_sums(lake.sql, columns, added), lake.parameters),
        Statement(_samples(lake.sql, columns), lake.parameters),
    ]
    if query.looks_up_columns and snapshot.files:
        statements.append(Statement(_column_bytes(snapshot, query.missing_columns), {}))
    return statements


def _columns(query: ValidatedQuery) -> dict[str, str]:
    """Return the text that reads each column of a message off the result; NULL where it is none of its type."""
    found = {column.name.lower(): column.type for column in query.output}
    found |= {name: "TIMESTAMP" if name == "publish_time" else "STRING" for name in query.missing_columns}
    wanted = {"topic": ("STRING", "VARCHAR"), "publish_time": ("TIMESTAMP", "TIMESTAMPTZ")}
    return {
        name: f'"{name}"' if found.get(name) == kind else f"CAST(NULL AS {lake})"
        for name, (kind, lake) in wanted.items()
    }


def _sums(sql: str, columns: Mapping[str, str], added: Mapping[str, str]) -> str:
    """Return the one query over all rows: totals, rows by topic and rows by hour."""
    return f"""
        WITH selected AS (
            SELECT {columns["topic"]} AS topic, {columns["publish_time"]} AS publish_time,
                date_trunc('hour', {columns["publish_time"]}) AS hour,
                octet_length(data) AS size,
                {_attribute_bytes(added)} AS attribute_size,
                coalesce({_is_without_room(columns, added)}, false) AS is_without_room,
                coalesce(len(list_filter(attributes, lambda a: a.key IS NULL OR a.value IS NULL)) > 0, false)
                    AS is_without_text,
                {_has_refused_attributes(added)} AS is_refused, {_has_rewritten_attributes(added)} AS is_rewritten
            FROM ({sql})
        )
        SELECT grouping(topic) AS no_topic, grouping(hour) AS no_hour, topic, hour, count(*) AS rows,
            coalesce(sum(size), 0) AS bytes, coalesce(sum(attribute_size), 0) AS attribute_bytes,
            min(publish_time) AS first, max(publish_time) AS last,
            count(*) FILTER (is_without_room) AS without_room, count(*) FILTER (is_without_text) AS without_text,
            count(*) FILTER (is_refused) AS refused, count(*) FILTER (is_rewritten) AS rewritten
        FROM selected GROUP BY GROUPING SETS ((topic), (hour), ())
        QUALIFY row_number() OVER (PARTITION BY no_topic, no_hour ORDER BY rows DESC, topic, hour)
            <= {MAX_GROUPS + 1}
    """  # noqa: S608 - the gate has written sql, the rest is ours


def _is_without_room(columns: Mapping[str, str], added: Mapping[str, str]) -> str:
    """Return the expression for whether a row's attributes and the tags are too many or too large."""
    own = _own_attributes(added)
    tags = len(REPLAY_TAGS) - len(_OPTIONAL_TAGS) + len(added)
    given = " + ".join(f"CAST({columns.get(name, name)} IS NOT NULL AS INTEGER)" for name in _OPTIONAL_TAGS)
    entries = f"list_transform({own}, lambda a: strlen(a.key) + strlen(a.value) + {_ENTRY_BYTES})"
    added_bytes = sum(len(f"{name}{value}".encode()) + _ENTRY_BYTES for name, value in added.items())
    most = MAX_MESSAGE_BYTES - _TAGS_BYTES - added_bytes
    return (
        f"(len({own}) + {tags} + {given} > {MAX_ATTRIBUTES} "
        f"OR octet_length(data) + coalesce(list_sum({entries}), 0) > {most})"
    )


def _has_refused_attributes(added: Mapping[str, str]) -> str:
    """Return the expression for whether Pub/Sub refuses one of a row's attributes.

    https://cloud.google.com/pubsub/quotas#resource_limits has the sizes, and
    https://cloud.google.com/pubsub/docs/publisher#using-attributes the keys that are reserved.
    """
    is_refused = (
        f"strlen(a.key) NOT BETWEEN 1 AND {MAX_ATTRIBUTE_KEY_BYTES} OR starts_with(a.key, 'goog') "
        f"OR strlen(a.value) > {MAX_ATTRIBUTE_VALUE_BYTES}"
    )
    return f"coalesce(len(list_filter({_own_attributes(added)}, lambda a: {is_refused})) > 0, false)"


def _has_rewritten_attributes(added: Mapping[str, str]) -> str:
    """Return the expression for whether a tag, or an added attribute, replaces another value of a row's own."""
    tags = ", ".join(map(quote_text, REPLAY_TAGS))
    others = "".join(
        f" OR (a.key = {quote_text(name)} AND a.value IS DISTINCT FROM {quote_text(value)})"
        for name, value in added.items()
    )
    return f"coalesce(len(list_filter(attributes, lambda a: a.key IN ({tags}){others})) > 0, false)"


def _attribute_bytes(added: Mapping[str, str]) -> str:
    """Return the text for the bytes of a row's own attributes and of those that are added."""
    own = f"list_transform({_own_attributes(added)}, lambda a: strlen(a.key) + strlen(a.value))"
    return f"coalesce(list_sum({own}), 0) + {sum(len(f'{name}{value}'.encode()) for name, value in added.items())}"


def _own_attributes(added: Mapping[str, str]) -> str:
    """Return the text for a row's attributes that neither a tag nor an added attribute replaces."""
    taken = ", ".join(quote_text(name) for name in (*REPLAY_TAGS, *added))
    return f"list_filter(attributes, lambda a: a.key NOT IN ({taken}))"


def _samples(sql: str, columns: Mapping[str, str]) -> str:
    # Cut where it is read: ten payloads can be 100 MB. One byte more tells a cut one from a whole one.
    return (
        f"SELECT message_id, {columns['publish_time']} AS publish_time, {columns['topic']} AS topic, "  # noqa: S608
        f"attributes[1:{MAX_ATTRIBUTES}] AS attributes, data[1:{MAX_SHOWN_BYTES + 1}] AS data "
        f"FROM ({sql}) LIMIT {MAX_SAMPLES}"
    )


def _column_bytes(snapshot: ArchiveSnapshot, missing: Sequence[str]) -> str:
    """Return the query for what the columns of the look-up take on disk, from the files' footers."""
    files = ", ".join(quote_text(file.path) for file in snapshot.files)
    names = ", ".join(quote_text(name) for name in dict.fromkeys(("message_id", "topic", "ingest_time", *missing)))
    return (
        f"SELECT coalesce(sum(total_compressed_size), 0) AS bytes FROM parquet_metadata([{files}]) "  # noqa: S608
        f"WHERE path_in_schema IN ({names})"
    )


class _Sums:
    """The groups of the one query: all rows, by topic, by hour."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.total = next(group for group in groups if group["no_topic"] and group["no_hour"])
        topics = [group for group in groups if not group["no_topic"]]
        hours = [group for group in groups if not group["no_hour"]]
        self.is_cut = max(len(topics), len(hours)) > MAX_GROUPS
        self.by_topic: dict[str, int] = {
            group["topic"]: group["rows"] for group in topics[:MAX_GROUPS] if group["topic"] is not None
        }
        self.by_hour: dict[datetime, int] = {
            group["hour"]: group["rows"] for group in hours[:MAX_GROUPS] if group["hour"] is not None
        }
