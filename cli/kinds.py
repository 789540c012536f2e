"""All kinds of objects, in the order in which help names them."""

from typing import Final

from cli.change import CHANGE
from cli.inventory import TOPIC
from cli.jobs import BACKFILL, COMPACTION, JOB, MERGE
from cli.manifest import MANIFEST
from cli.objects import ObjectKinds
from cli.schedule import SCHEDULE
from cli.snapshot import RESTORE, SNAPSHOT
from cli.source import SOURCE
from cli.stream import STREAM
from cli.template import TEMPLATE
from cli.update import UPDATE

KINDS: Final = ObjectKinds(
    (
        STREAM,
        SCHEDULE,
        JOB,
        BACKFILL,
        MERGE,
        COMPACTION,
        UPDATE,
        SNAPSHOT,
        RESTORE,
        CHANGE,
        TOPIC,
        SOURCE,
        MANIFEST,
        TEMPLATE,
    )
)
