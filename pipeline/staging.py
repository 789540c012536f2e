"""The pipeline as work of the stream engine: many tables that learn, and counts by source."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import structlog

from pipeline.inferred import Variation
from pipeline.paths import MAX_COUNTED, OTHERS
from pipeline.source import FORGED_REPLAY, StagedParts
from streams.ids import PULLED_IDS_SCHEMA
from streams.targets import TableKeeper, TaskOutput, is_topic
from warehouse.rows import RowPart

_log = structlog.get_logger(__name__)

# A total, and the kind of finding that it sums up over all sources.
_SUMMED: Final = {"dead_letters": "refused", "unknown_fields": "unknown", "forged_replays": FORGED_REPLAY}

_PUBLISHED: Final = "published"
_REPLAYED: Final = "replayed_dead_letters"

Learn = Callable[[TableKeeper, Sequence[Variation]], bool]


class StagingWork:
    """Reads the results of a pipeline's tasks, and counts them; ``parse_part`` is the tables'.

    ``learn`` makes tables wide enough for variations, and returns whether messages may come again at once.
    """

    name: Final = "pipeline"
    counted: Final = (*_SUMMED, _PUBLISHED, _REPLAYED)

    def __init__(self, parse_part: Callable[[Mapping[str, Any]], RowPart], learn: Learn = lambda *_: True) -> None:
        self._parse_part = parse_part
        self._learn = learn
        self._sources: dict[str, dict[str, Counter[str]]] = {}

    def read_output(self, encoded: bytes) -> TaskOutput:
        """Return the work of one task: a part for each of its tables, and messages that did not fit."""
        found = StagedParts.decode(bytes(encoded), self._parse_part)
        return TaskOutput(
            found.parts,
            settled=PULLED_IDS_SCHEMA.empty_table(),
            unfit=found.unfit,
            found=found,
            is_lesson=bool(found.variations or found.unfit.num_rows),
        )

    def count(
        self,
        totals: Counter[str],
        outputs: Sequence[TaskOutput],
        parts: Mapping[str, Sequence[Any]],
        is_written: Sequence[pa.BooleanArray],
    ) -> None:
        """Count the rows and dead letters that are new, and the findings, by source."""
        totals[_PUBLISHED] += sum(part.rows for name, found in parts.items() if is_topic(name) for part in found)
        flags = iter(is_written)
        for output in outputs:
            written = _count_written(output, [next(flags) for _ in output.parts])
            for source in written.keys() | output.found.counts.keys():
                none = {"rows": Counter(staged=0)}
                kinds = {**none, **output.found.counts.get(source, {}), **written.get(source, {})}
                found = self._sources.setdefault(source, {})
                totals[_REPLAYED] += sum(kinds.pop(_REPLAYED, {}).values())
                for total, kind in _SUMMED.items():
                    totals[total] += sum(kinds.get(kind, {}).values())
                for kind, counts in kinds.items():
                    _add(source, kind, found.setdefault(kind, Counter()), counts)

    def learn(self, keeper: TableKeeper, outputs: Sequence[TaskOutput]) -> bool:
        """Learn from the variations of messages, those that fit among them; return whether there is room."""
        variations = [variation for output in outputs for variation in output.found.variations]
        if not any(output.is_lesson for output in outputs):
            return True
        return self._learn(keeper, variations)

    def status(self) -> dict[str, Any]:
        """Return a copy of the counts by source, which the status may keep."""
        counted = {
            source: {kind: dict(found) for kind, found in kinds.items()} for source, kinds in self._sources.items()
        }
        return {"sources": counted}


def _count_written(
    output: TaskOutput, is_written: Sequence[pa.BooleanArray]
) -> dict[str, dict[str, Counter[str]]]:
    """Return how many rows, and how many dead letters by code, of an output are committed, by source."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    names = output.found.names
    for one, flags in zip(output.parts, is_written, strict=True):
        if is_topic(one.table):
            continue
        subscriptions, codes = one.ids.column("subscription"), output.found.codes.get(one.table)
        if codes is None:
            # A table is one source's, and a batch may have thousands of them.
            counts[names[subscriptions[0].as_py()]]["rows"]["staged"] += flags.true_count
            continue
        replays = one.ids.column("replay").to_pylist()
        letters = zip(subscriptions.to_pylist(), codes, replays, flags.to_pylist(), strict=True)
        for subscription, code, replay, is_new in letters:
            if is_new:
                counts[names[subscription]]["refused"][code] += 1
                counts[names[subscription]][_REPLAYED][code] += bool(replay)
    return counts


def _add(source: str, kind: str, found: Counter[str], counts: Mapping[str, int]) -> None:
    """Count findings, and log each the first time: a person has to look at the schema or at the producer."""
    for path, count in counts.items():
        counted = path if path in found or len(found) < MAX_COUNTED else OTHERS
        if counted not in found and kind != "rows":
            _log.warning(f"{kind}_found", source=source, path=counted)
        found[counted] += count
