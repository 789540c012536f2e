"""The pipeline's dead letters: counted by reason, each reason with the request that sends its messages again."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from backfill.plan.repair import is_unchanged, render_repair
from model.moment import render_moment, render_time
from model.query_parameter import QueryParameter

# By source, topic, code and path; what is beyond is less frequent than all of these.
_MOST_GROUPS: Final = 1000
_MOST_EXAMPLES: Final = 5
# The place that a wrong type's reason begins with, "" for none; as in pipeline.paths.counted_path, numbers and
# keys of lists and maps are left out, so that one fault is one group.
_PATH: Final = (
    "IFNULL(IF(d.error_code = 'wrong_type' AND NOT STARTS_WITH(d.error_message, 'A value has no cell: '), "
    "SUBSTR(REGEXP_REPLACE(REGEXP_EXTRACT(d.error_message, r'^(.+?): '), "
    "r'\\[([0-9]+|\"[^\"]*\")\\]', '[]'), 1, 200), NULL), '')"
)
# The topic that a source reads, and the staging tables of its rows where they are known.
SourcePlace = tuple[str, Sequence[str]]
_Parameters = Mapping[str, QueryParameter]
# A message's topic and id.
_Message = tuple[str, str]
# Runs a SELECT over the tables that queries may read, and over others that are given, and returns its rows; none
# where there are no dead letters.
Answer = Callable[..., list[dict[str, Any]]]
# Returns which of the tables exist, None where not all of them may be read.
FindStaging = Callable[[Sequence[str]], Sequence[str] | None]
_PAYLOAD: Final = ("attributes", "data", "data_bytes")
# What the count of dead letters has as it is shown.
_COUNTED: Final = ("source", "topic", "code", "messages", "first_ingest_time", "last_ingest_time")


class LetterReasonOut(BaseModel):
    """The dead letters of one source that have the same code and path, or those of a backfill with one code."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    source: str | None = Field(None, description="The source. Null for a backfill.")
    topic: str | None = Field(None, description="The topic to which the messages were first published.")
    code: str = Field(description="The code of the reason.")
    path: str | None = Field(None, description="The path of the faulty field in the message, if there is one.")
    messages: int = Field(description="Number of messages. Each message counts once, with its latest reason.")
    repaired: int | None = Field(None, description="How many of them later became rows. Null means unknown.")
    first_ingest_time: datetime | None = Field(
        None, description="When the first message first became a dead letter."
    )
    last_ingest_time: datetime | None = Field(
        None, description="When the last message last became a dead letter, such as after a redrive."
    )
    example_row: int | None = Field(default=None, description="For a backfill, the row of the example message.")
    example_message_id: str | None = Field(description="The id of one message, as an example.")
    example_message_ids: list[str] | None = Field(None, description="Up to 5 ids of messages, the latest first.")
    example_reason: str = Field(description="The reason of the example message.")
    is_unchanged: bool | None = Field(
        default=None,
        description="Whether neither the registry nor the pipeline's process has changed since the last message "
        "failed: then the messages would fail again. Null means unknown.",
    )
    advice: str | None = Field(
        default=None, description="How to repair what made the messages dead letters, before you send them again."
    )
    request: dict[str, Any] | None = Field(
        None, description="A body for `POST /backfills`, which sends all messages that are not repaired yet."
    )


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Dead letters of one source since ``start``; None stands for every code, or every path ("" is none)."""

    source: str
    start: datetime
    code: str | None = None
    path: str | None = None


class LetterCounter:
    """Counts the rows of ``table``; ``places`` finds a source in the registry, None is one that is not there.

    ``find_changes`` returns when the registry or the pipeline's process of a source last changed, if it is known.
    """

    def __init__(
        self,
        table: str,
        answer: Answer,
        find_staging: FindStaging,
        places: Callable[[str], SourcePlace | None],
        find_changes: Callable[[Collection[str]], Mapping[str, datetime]] = lambda _sources: {},
    ) -> None:
        self._table = table
        self._answer = answer
        self._find_staging = find_staging
        self._places = places
        self._find_changes = find_changes

    def count(self, start: datetime) -> list[LetterReasonOut]:
        """Return the dead letters that were written since ``start`` by source, code and path, most messages first.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        since: _Parameters = {"from": {"type": "TIMESTAMP", "value": render_moment(start)}}
        sources = f"SELECT DISTINCT d.source FROM `{self._table}` AS d WHERE {_since('d')}"  # noqa: S608 - a setting
        places = {row["source"]: self._places(row["source"]) for row in self._answer(sources, since)}
        if not places:
            return []
        staged = {source: self._staged(place) for source, place in places.items()}
        text, names = _render_count(self._table, staged)
        parameters = {**since, **{name: _text(source) for name, source in names.items()}}
        found = self._answer(text, parameters, [table for tables in staged.values() for table in tables or ()])
        changed = self._find_changes(places)
        return [
            self._reason(row, places.get(source := row["source"]), staged.get(source), since, changed.get(source))
            for row in found
        ]

    def staging_of(self, query: str, parameters: _Parameters) -> Sequence[str]:
        """Return the staging tables that ``query`` reads if it is the redrive of a source, none of another query.

        A caller may send this one query although it reads tables that queries may not: the caller chooses nothing
        of its text.
        """
        source = parameters.get("source")
        if not isinstance(source, Mapping) or self._table not in query:
            return ()
        staged = self._staged(self._places(str(source.get("value")))) or ()
        # A table may be newer than the query.
        read = [table for table in staged if f"`{table}`" in query]
        return read if query == _render_redrive(self._table, read) else ()

    def list_messages(
        self, choice: LetterChoice, *, limit: int, preview_bytes: int | None = None
    ) -> list[dict[str, Any]]:
        """Return up to ``limit`` messages, the latest first; those that have become a row since are among them.

        With ``preview_bytes`` each has its attributes, the whole size of its payload, and as ``data`` those bytes
        of it and one more. Without, these are None.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        chosen = {"codes": choice.code, "paths": choice.path}
        parameters: _Parameters = {
            "from": {"type": "TIMESTAMP", "value": render_moment(choice.start)},
            "source": _text(choice.source),
            **{
                name: {"type": "ARRAY<STRING>", "value": [] if one is None else [one]}
                for name, one in chosen.items()
            },
        }
        rows = self._answer(_render_list(self._table, limit, preview_bytes), parameters)
        return [
            {
                **{name: row[name] for name in ("source", "topic", "message_id", "code", "reason")},
                "path": row["path"] or None,
                "publish_time": render_time(row["publish_time"]),
                "at": render_time(row["ingest_time"]),
                **(dict.fromkeys(_PAYLOAD) if preview_bytes is None else _payload_of(row)),
            }
            for row in rows
        ]

    def find_reasons(self, messages: Collection[_Message], start: datetime) -> dict[_Message, tuple[str, str]]:
        """Return the code and the reason of those messages that became a dead letter since ``start``.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        parameters: _Parameters = {
            "from": {"type": "TIMESTAMP", "value": render_moment(start)},
            "message_ids": {"type": "ARRAY<STRING>", "value": sorted({message_id for _, message_id in messages})},
        }
        rows = self._answer(
            "SELECT d.topic, d.message_id, d.error_code AS code, d.error_message AS reason\n"
            f"FROM `{self._table}` AS d WHERE {_since('d')} AND d.message_id IN UNNEST(@message_ids)\n"
            "QUALIFY ROW_NUMBER() OVER (PARTITION BY d.topic, d.message_id ORDER BY d.ingest_time DESC) = 1",
            parameters,
        )
        found = {(row["topic"], row["message_id"]): (row["code"], row["reason"]) for row in rows}
        return {message: found[message] for message in messages if message in found}

    def read_data(self, source: str, topic: str, message_id: str, start: datetime) -> bytes | None:
        """Return the payload of a dead letter that was written since the day of ``start``, else None.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        # A row's partition begins before it.
        day = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        parameters: _Parameters = {
            "from": {"type": "TIMESTAMP", "value": render_moment(day)},
            **{
                name: _text(one)
                for name, one in (("source", source), ("topic", topic), ("message_id", message_id))
            },
        }
        rows = self._answer(
            f"SELECT d.data FROM `{self._table}` AS d WHERE {_since('d')}\n"  # noqa: S608 - a setting
            "  AND d.source = @source AND d.topic = @topic AND d.message_id = @message_id\n"
            "ORDER BY d.ingest_time DESC LIMIT 1",
            parameters,
        )
        return bytes(rows[0]["data"] or b"") if rows else None

    def _staged(self, place: SourcePlace | None) -> Sequence[str] | None:
        """Return the source's staging tables if all of them may be read: a part would call too few repaired."""
        return None if place is None else self._find_staging(place[1])

    def _reason(
        self,
        row: Mapping[str, Any],
        place: SourcePlace | None,
        tables: Sequence[str] | None,
        since: _Parameters,
        changed_at: datetime | None,
    ) -> LetterReasonOut:
        source, code = row["source"], row["code"]
        unchanged = is_unchanged(code, row["last_ingest_time"], changed_at)
        return LetterReasonOut(
            is_unchanged=unchanged,
            advice=render_repair(source, code, unchanged=unchanged),
            **{name: row[name] for name in _COUNTED},
            path=row["path"] or None,
            repaired=None if tables is None else row["repaired"],
            example_message_id=row["example_message_ids"][0],
            example_message_ids=list(row["example_message_ids"]),
            example_reason=row["example_reasons"][0],
            request={
                # Where the source reads; the message may have come from another topic, by a backfill.
                "topic": row["topic"] if place is None else place[0],
                "query": _render_redrive(self._table, tables or ()),
                "parameters": {
                    **since,
                    "source": _text(row["source"]),
                    "codes": {"type": "ARRAY<STRING>", "value": [row["code"]]},
                    "paths": {"type": "ARRAY<STRING>", "value": [row["path"]]},
                    "message_ids": {"type": "ARRAY<STRING>", "value": []},
                },
            },
        )


def _render_count(table: str, staged: Mapping[str, Sequence[str] | None]) -> tuple[str, dict[str, str]]:
    """Return the query, and the source that each of its parameters names."""
    names: dict[str, str] = {}
    rows = []
    for number, (source, tables) in enumerate(sorted(staged.items())):
        for staging in tables or ():
            names[f"source_{number}"] = source
            rows.append(
                f"SELECT @source_{number} AS source, s._topic AS topic, s._message_id AS message_id "  # noqa: S608
                f"FROM `{staging}` AS s WHERE {_since('s')}"
            )
    # Without a table that may be read nothing is known to be repaired.
    repaired, join = "0", ""
    if rows:
        repaired = "COUNTIF(r.message_id IS NOT NULL)"
        join = (
            f"\nLEFT JOIN (SELECT DISTINCT source, topic, message_id FROM ({' UNION ALL '.join(rows)})) AS r\n"  # noqa: S608
            "  ON r.source = l.source AND r.topic = l.topic AND r.message_id = l.message_id"
        )
    latest = "ORDER BY l.ingest_time DESC, l.message_id"
    text = (
        f"SELECT l.source, l.topic, l.error_code AS code, l.path, COUNT(*) AS messages, {repaired} AS repaired,\n"  # noqa: S608
        "  MIN(l.first_time) AS first_ingest_time, MAX(l.ingest_time) AS last_ingest_time,\n"
        f"  ARRAY_AGG(l.message_id {latest} LIMIT {_MOST_EXAMPLES}) AS example_message_ids,\n"
        f"  ARRAY_AGG(IFNULL(l.error_message, '') {latest} LIMIT 1) AS example_reasons\n"
        "FROM (\n"
        "  SELECT d.source, d.topic, d.message_id, d.error_code, d.error_message, d.ingest_time,\n"
        f"    {_PATH} AS path,\n"
        # A message that was sent again has failed since its first dead letter.
        "    MIN(d.ingest_time) OVER (PARTITION BY d.source, d.topic, d.message_id) AS first_time\n"
        f"  FROM `{table}` AS d WHERE {_since('d')}\n"
        "  QUALIFY ROW_NUMBER() OVER (\n"
        "    PARTITION BY d.source, d.topic, d.message_id ORDER BY d.ingest_time DESC) = 1\n"
        f") AS l{join}\n"
        "GROUP BY l.source, l.topic, l.error_code, l.path\n"
        f"ORDER BY messages DESC, source, code, path LIMIT {_MOST_GROUPS}"
    )
    return text, names


def _render_redrive(table: str, tables: Sequence[str]) -> str:
    """Return the query of a backfill; an empty list of codes, of paths or of ids stands for all."""
    repaired = "".join(
        f"\n  AND NOT EXISTS (\n    SELECT 1 FROM `{staging}` AS s WHERE {_since('s')}\n"  # noqa: S608
        "      AND s._topic = d.topic AND s._message_id = d.message_id)"
        for staging in tables
    )
    return (
        f"SELECT data, attributes, message_id, topic, publish_time FROM `{table}` AS d\n"  # noqa: S608 - a setting
        f"WHERE {_since('d')}\n  AND d.source = @source\n"
        "  AND (ARRAY_LENGTH(@message_ids) = 0 OR d.message_id IN UNNEST(@message_ids))"
        f"{repaired}\n"
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY d.topic, d.message_id ORDER BY d.ingest_time DESC) = 1\n"
        "  AND (ARRAY_LENGTH(@codes) = 0 OR d.error_code IN UNNEST(@codes))\n"
        f"  AND (ARRAY_LENGTH(@paths) = 0 OR {_PATH} IN UNNEST(@paths))"
    )


def _render_list(table: str, limit: int, preview_bytes: int | None) -> str:
    payload = ""
    if preview_bytes is not None:
        # Cut before rows are compared: whole payloads of a source need not fit into memory.
        cut = f"SUBSTR(d.data, 1, {preview_bytes + 1})"
        payload = f",\n    d.attributes, BYTE_LENGTH(d.data) AS data_bytes, {cut} AS data"
    return (
        "SELECT l.* FROM (\n"  # noqa: S608 - a setting
        f"  SELECT d.source, d.topic, d.message_id, d.error_code AS code, {_PATH} AS path,\n"
        f"    d.error_message AS reason, d.publish_time, d.ingest_time{payload}\n"
        f"  FROM `{table}` AS d WHERE {_since('d')} AND d.source = @source\n"
        ") AS l WHERE TRUE\n"
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY l.topic, l.message_id ORDER BY l.ingest_time DESC) = 1\n"
        "  AND (ARRAY_LENGTH(@codes) = 0 OR l.code IN UNNEST(@codes))\n"
        "  AND (ARRAY_LENGTH(@paths) = 0 OR l.path IN UNNEST(@paths))\n"
        f"ORDER BY ingest_time DESC, topic, message_id LIMIT {limit}"
    )


def _payload_of(row: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {str(entry["key"]): entry["value"] for entry in row["attributes"] or () if entry}
    return {"attributes": attributes, "data": bytes(row["data"] or b""), "data_bytes": row["data_bytes"] or 0}


def _since(name: str) -> str:
    """Return the condition for rows of a table since ``@from``, those of BigQuery's write buffer included.

    The first half prunes partitions, whose time is their day's start.
    """
    return (
        f"({name}._PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) OR {name}._PARTITIONTIME IS NULL) "
        f"AND {name}.ingest_time >= @from"
    )


def _text(text: str) -> QueryParameter:
    return {"type": "STRING", "value": text}
