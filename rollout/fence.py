"""Keeps every process of a stream away from its tables while the stream's state is changed."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from model.stream_options import PipelineStreamOptions, StreamOptions, stream_lease
from streams.lease import hold_lease, lock_home
from warehouse.port import Warehouse
from warehouse.rows import RowTables


class StreamFence:
    """Holds the locks of a running stream: the lock of its folder, and the lease beside its tables.

    Without them a stream of another home would take messages that a seek brings again for new ones.
    """

    def __init__(self, warehouse: Warehouse, *, project: str) -> None:
        self._warehouse = warehouse
        self._project = project

    @contextmanager
    def hold(self, state: Path, options: StreamOptions) -> Iterator[RowTables | None]:
        """Hold the stream with ``options`` and the folder ``state``; yield the tables of a pipeline.

        Raises:
            LeaseHeldError: a process of the stream runs, in this or another home.
        """
        lease = stream_lease(options, self._project)
        with lock_home(state) as stream:
            if isinstance(options, PipelineStreamOptions):
                with closing(self._warehouse.open_row_tables(stream=stream, lease=lease)) as tables:
                    tables.create()
                    with hold_lease(tables.leases(), lease, stream):
                        yield tables
            else:
                with closing(self._warehouse.open_archive()) as archive:
                    archive.check()
                    with hold_lease(archive.leases(), lease, stream):
                        yield None
