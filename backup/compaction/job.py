"""The driver of a compaction: one table after the other, with one commit for each partition."""

import sys
import time
from typing import Final

import structlog

from jobs.driver import run_driver
from jobs.folder import JobFolder, Outcome
from model.errors import RefeedError, TableNotFoundError, WarehouseError
from model.failure import safe_message
from model.job import JobState
from warehouse.open import warehouse_from_json
from warehouse.port import Upkeep, Warehouse

# The archive's name among the tables of a compaction.
ARCHIVE: Final = "archive"
_LOG: Final = structlog.get_logger()
# Tries after conflicts: a stream's own compaction may replace files that this one has read.
_TRIES: Final = 5
_RETRY_SECONDS: Final = 1.0


def run_compaction(folder: JobFolder, epoch: int) -> Outcome:
    """Run attempt ``epoch`` of the compaction in ``folder`` and return its outcome.

    Tables that an earlier attempt has noted are skipped. A table that fails does not stop the others. After a
    death between a commit and its note, the next attempt looks at that table again, and finds nothing to do.
    """
    specification = folder.read_specification()
    warehouse: Warehouse = warehouse_from_json(specification["warehouse"])
    findings = folder.read_findings()
    failed: list[RefeedError] = []
    for name in specification["tables"]:
        if name in findings:
            continue
        try:
            upkeep = warehouse.open_upkeep(None if name == ARCHIVE else name)
            assert upkeep is not None, "the service makes no compaction of another warehouse"
            findings[name] = _compact(upkeep)
        except RefeedError as exc:
            _LOG.exception("not compacted", table=name, code=exc.code)
            failed.append(exc)
            continue
        folder.write_findings(findings)
        _LOG.info("compacted", table=name, files_removed=findings[name])
    if not failed:
        return Outcome(epoch, JobState.SUCCEEDED)
    message = " ".join(safe_message(exc.code, exc.message) for exc in failed)
    return Outcome(epoch, JobState.FAILED, {"code": failed[0].code, "message": message[:2000]})


def _compact(upkeep: Upkeep) -> int:
    for _ in range(_TRIES - 1):
        try:
            return upkeep.compact()
        except TableNotFoundError:
            raise
        except WarehouseError:
            time.sleep(_RETRY_SECONDS)
    return upkeep.compact()


def main(argument: str) -> int:
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; 0 when every table is compacted."""
    return run_driver(argument, run_compaction)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
