"""The newest status of a stream's process: in this home, or as it was reported to the store."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.stream import StoredReport
from model.stream_record import StreamRecord
from streams.folder import StreamFolder
from streams.status import StatusFile


class StreamStatuses:
    """Reads statuses in a home, and those that ``reports`` returns of other machines' streams.

    A stream reports to a store that several machines share, and to none else: then its home is this one.
    """

    def __init__(self, home: Path, reports: Callable[[], Sequence[StoredReport]]) -> None:
        self._home = home
        self._reports = reports

    def read(self, record: StreamRecord) -> Mapping[str, Any]:
        """Return the status of the record's newest process, also after its end; empty where there is none.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if record.instance_id is None:
            return {}
        here = StatusFile.read(StreamFolder.of(self._home, record.name, record.instance_id).status)
        if here is not None:
            return here
        for stored in self._reports():
            if (stored.report.name, stored.report.instance) == (record.name, record.instance_id):
                return stored.report.status
        return {}
