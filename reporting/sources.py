"""Which of a registry's data sources are merged, and by which rules."""

from collections.abc import Iterable
from typing import Any, Protocol

from model.entity import EntityRules, version_order
from model.errors import RequestInvalidError
from warehouse.merges import MergeSource


class DataSource(Protocol):
    """What a merge has to know of a data source; the registry's are such."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def staging(self) -> str:
        """The table with every version of its entities."""
        ...

    @property
    def reporting(self) -> str:
        """The table with one row an entity."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell entities apart."""
        ...

    @property
    def event_time(self) -> str | None:
        """The column that says which version is newer."""
        ...

    @property
    def dedup_order(self) -> tuple[str, ...]:
        """Columns that say so before it."""
        ...

    @property
    def partition(self) -> str | None:
        """The column whose day is the entity's partition."""
        ...

    @property
    def variant(self) -> str:
        """``change_data`` when messages say what happened to the entity."""
        ...

    @property
    def is_soft_delete(self) -> bool:
        """Whether a removed entity keeps its last values."""
        ...


def mergeable(sources: Iterable[DataSource]) -> list[MergeSource]:
    """Return those that have entities to merge: a key, and a reporting table."""
    return [_merge_source(source) for source in sources if source.key and source.reporting]


def choose_sources(
    names: Iterable[str] | None, sources: Iterable[DataSource], *, pointer: str = "/source"
) -> list[MergeSource]:
    """Return the sources with these names, or all that can be merged.

    Raises:
        RequestInvalidError: there is no such source, or it has no key; every one is in the details.
    """
    known = {source.name: source for source in sources}
    if names is None:
        return mergeable(known.values())
    wanted = list(dict.fromkeys(names))
    errors: list[dict[str, Any]] = []
    for name in wanted:
        if name not in known:
            message = f"The registry has no valid source {name[:100]!r}; 'refeed registry check' says what it has."
            errors.append({"code": "source_unknown", "message": message, "pointer": pointer})
        elif not mergeable([known[name]]):
            message = f"{name} has no key in sources.yaml, so nothing tells its entities apart."
            errors.append({"code": "source_without_key", "message": message, "pointer": pointer})
    if errors:
        raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)
    return mergeable(known[name] for name in wanted)


def _merge_source(source: DataSource) -> MergeSource:
    rules = EntityRules(
        key=source.key,
        order=version_order(source.dedup_order, source.event_time),
        partition_field=source.partition,
        has_operation=source.variant == "change_data",
        is_soft_delete=source.is_soft_delete,
    )
    return MergeSource(source.name, source.staging, source.reporting, rules)
