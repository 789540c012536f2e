"""Keeps streams' reports in the job store, where the API looks for them."""

from jobs.store import JobStore, open_store
from model.settings import Settings
from model.stream import StreamReport


class StoreReporter:
    """Reports to the job store at ``url``, which the first report opens; for one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: JobStore | None = None

    def report(self, report: StreamReport) -> None:
        """Keep the report instead of the instance's last one.

        Raises:
            RefeedError: the store does not answer, or is of a newer Refeed.
        """
        if self._store is None:
            self._store = open_store(self._url)
        self._store.put_stream_report(report)

    def close(self) -> None:
        """Close the store's connections."""
        if self._store is not None:
            self._store.close()


def open_reporter(settings: Settings) -> StoreReporter | None:
    """Return the reporter of a stream; None where the job store is the home's own file.

    A reader of that file reads the streams' status files beside it. They need no locks, which a SQLite file on
    a disk that several hosts share may not have: https://sqlite.org/wal.html, "Overview".
    """
    return StoreReporter(settings.job_store) if settings.has_own_store else None
