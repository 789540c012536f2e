"""Spark as the simulation has it: a query reads a stream's batches, each slot in a task of its own."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from connectors.pubsub.source import PullOptions, PullStreamReader, TaskResult
from model.errors import RefeedError
from tests.simulation import threads
from tests.simulation.kernel import World


class Rows(list[TaskResult]):
    """The rows of a batch, as Spark's foreachBatch hands them over."""

    def toArrow(self) -> Self:  # noqa: N802 - Spark's name
        return self


class Spark:
    """A session of one start of a stream, whose tasks do ``run_task`` with what they pull.

    It is also what a query is made with, of which only the options of the pull and the sink count here.
    """

    def __init__(self, world: World, run_task: Callable[..., bytes], pubsub: Any) -> None:
        self._world = world
        self._run_task = run_task
        self._pubsub = pubsub
        self._pull = ""
        self._sink: Any = None

    def __getattr__(self, _: str) -> Any:
        """Return the next part of a call: dataSource, readStream, format(...), load() and the like."""
        return self

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self

    def option(self, name: str, value: str) -> Self:
        if name == "pull":
            self._pull = value
        return self

    def foreachBatch(self, sink: Any) -> Self:  # noqa: N802 - Spark's name
        self._sink = sink
        return self

    def start(self) -> "Query":
        reader = PullStreamReader(PullOptions(**json.loads(self._pull)), self._run_task)
        reader._pubsub = self._pubsub
        return Query(self._world, reader, self._sink)


class Query:
    """A query that runs: one batch is planned, read by its tasks and handed over after the other."""

    def __init__(self, world: World, reader: PullStreamReader, sink: Callable[[Rows, int], None]) -> None:
        self._world = world
        self._reader = reader
        self._sink = sink
        self._error: Exception | None = None
        self._is_stopped = False
        # Looks that found nothing to read: by then all that was read is handed over.
        self._idle_looks = 0
        self._thread = threads.Thread(world, self._run, name="query")
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        return self._error

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until there is nothing to read, which a stop file sees to."""
        looks = self._idle_looks
        while self.isActive and self._idle_looks < looks + 2:
            self._world.step("wait for the query", 0.1)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join()

    def _run(self) -> None:
        offset = self._reader.initialOffset()
        try:
            while not self._is_stopped:
                self._world.step("plan a batch")
                end = self._reader.latestOffset(offset, None)
                if end == offset:
                    self._idle_looks += 1
                    continue
                self._sink(self._read(self._reader.partitions(offset, end)), end["batch"])
                offset = end
        except (RefeedError, OSError) as exc:
            self._error = exc

    def _read(self, parts: list[Any]) -> Rows:
        """Have each slot read its part, all of them at the same time."""
        world = self._world
        done = [threads.Future(world) for _ in parts]

        def read(slot: int) -> None:
            try:
                done[slot].set_result([TaskResult(*row) for row in self._reader.read(parts[slot])])
            except (RefeedError, OSError) as exc:
                done[slot].set_exception(exc)

        for slot in range(len(parts)):
            world.start(f"task {slot}", world.task.process, partial(read, slot))
        threads.wait_for_futures(world, done)
        return Rows(row for future in done for row in future.result())
