"""How a backfill runs: the part of its specification beside the query and the target."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from backfill.plan.request import BackfillRequest
from model.errors import SelectionTooLargeError

Only = Literal["all", "failed", "missing"]


@dataclass(frozen=True, slots=True)
class SelectionBounds:
    """The bounds of one selection in a deployment; None is no bound.

    ``max_bytes`` are those of the rows, attributes and all; ``min_free_bytes`` stay free on the disk they are
    written to.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    min_free_bytes: int = 0

    def check(self, rows: int, size_bytes: int) -> None:
        """Raise when a selection is larger than the deployment allows.

        Raises:
            SelectionTooLargeError: it is.
        """
        for found, most, what, setting in (
            (rows, self.max_rows, "rows", "REFEED_SELECTION_MAX_ROWS"),
            (size_bytes, self.max_bytes, "bytes", "REFEED_SELECTION_MAX_BYTES"),
        ):
            if most is not None and found > most:
                raise SelectionTooLargeError(
                    f"The query selects more than {most} {what}, the limit of a selection ({setting}).",
                    **{f"max_{what}": most},
                )

    def allows(self, rows: int, size_bytes: int) -> bool:
        """Whether :meth:`check` lets a selection as large as this pass."""
        with suppress(SelectionTooLargeError):
            self.check(rows, size_bytes)
            return True
        return False


UNBOUNDED: Final = SelectionBounds()


@dataclass(frozen=True, slots=True)
class RunOptions(BackfillRequest):
    """The request as the driver of an attempt has it; a specification of an earlier version has some of it.

    ``attributes`` are all that every message gets beside its own and the tags. ``only`` and ``rows`` are a
    retry's: "failed" sends nothing but dead letters again, those that ``rows`` numbers or without numbers all,
    "missing" the rows of the selection that ``rows`` numbers and what is left, "all" what is left and the dead
    letters. Above ``approval_rows`` rows, those that were approved or need no approval, it pauses before its first
    message.
    ``max_rows`` and ``fail_if_empty`` are the request's own bounds, ``bounds`` the deployment's.
    """

    query: str = ""
    topic: str = ""
    bounds: SelectionBounds = UNBOUNDED
    approval_rows: int | None = None
    only: Only = "all"
    rows: tuple[int, ...] = ()

    @property
    def by_key(self) -> bool:
        """Whether the messages of an ordering key go out in their order."""
        return self.ordering == "by_key"

    @classmethod
    def from_specification(cls, specification: Mapping[str, Any]) -> Self:
        """Return the options in the part "run" of a job's specification."""
        run = specification.get("run", {})
        bounds, rows = SelectionBounds(**run.get("bounds") or {}), tuple(run.get("rows") or ())
        return cls.from_json({**run, "bounds": bounds, "rows": rows})
