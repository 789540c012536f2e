"""Sources whose latest messages all became dead letters, judged from what their stream counts."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from inventory.status import StatusProblem
from inventory.streams import InstanceTotal
from jobs.store.figures import FigurePoint

REFUSED_WITHIN: Final = timedelta(hours=1)


def judge_refused(total: InstanceTotal, points: Sequence[FigurePoint], since: datetime) -> Iterator[StatusProblem]:
    """Yield the sources of a stream that refused messages since ``since`` and got no row then or later.

    ``points`` are the stream's since that time, oldest first; those of the process alone count.
    """
    own = [point for point in points if point.figures.get("instance_id") == total.instance_id]
    for source, (rows, refused) in sorted(total.refused.items()):
        counts = [tuple(found) for point in own if (found := (point.figures.get("refused") or {}).get(source))]
        # What was counted before the latest refusal.
        before = next((each for each in reversed(counts) if each[1] < refused), None)
        if before is None and total.started_at is not None and total.started_at >= since:
            before = (0.0, 0.0)
        if before is not None and before[0] == rows:
            latest = refused - before[1]
            said = "The latest message" if latest == 1 else f"All of the latest {latest:,.0f} messages"
            yield StatusProblem(
                "source_refuses", source, f"{said} of this source became dead letters, replays included."
            )
