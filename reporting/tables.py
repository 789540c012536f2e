"""The union views of a lake as tables that queries read, by the name that they have in BigQuery too."""

from collections.abc import Iterable

from connectors.lake.query_tables import TableFile, TableSnapshot, describe_columns
from model.entity import VIEW_SUFFIX
from model.errors import WarehouseError
from model.table import TableRead, TableSchema
from reporting.merge import MergeSource
from reporting.view import UnionView, open_view


def view_name(source: MergeSource) -> str:
    """Return what the union view of a source is called: its reporting table's name with ``_view``.

    Example:
        >>> from model.entity import EntityRules
        >>> view_name(MergeSource("orders", "staging.orders", "shop.orders", EntityRules(("id",), ())))
        'shop.orders_view'
    """
    return f"{source.reporting}{VIEW_SUFFIX}"


class LakeViews:
    """The views of some sources in the lake at ``lake``; each is read as it is when it is opened first."""

    def __init__(self, lake: str, sources: Iterable[MergeSource]) -> None:
        self._lake = lake
        self._sources = {view_name(source): source for source in sources}
        self._open: dict[str, UnionView] = {}

    def __contains__(self, table: object) -> bool:
        return table in self._sources

    def read_schemas(self) -> tuple[TableSchema, ...]:
        """Return the columns of every view; a source of which nothing was ever staged has none."""
        found = []
        for name, source in self._sources.items():
            view = self._open.get(name) or open_view(source, self._lake)
            if view is not None:
                self._open[name] = view
                columns = describe_columns(view.statements.schema)
                found.append(TableSchema(name, tuple((column.name, column.type) for column in columns)))
        return tuple(found)

    def snapshot(self, read: TableRead) -> TableSnapshot:
        """Return what a query over a view reads.

        Raises:
            WarehouseError: nothing was ever staged of its source.
        """
        view = self._open.get(read.table)
        if view is None:
            raise WarehouseError(f"The lake has no view {read.table}.", table=read.table)
        every = view.staging.every if view.staging.replays else ()
        paths = (*view.reporting, *view.staging.paths, *every)
        # Only its paths are asked for: nobody is told what reading a view comes to.
        files = tuple(TableFile(path, 0) for path in dict.fromkeys(paths))
        select = view.statements.union_sql(view.reporting, view.staging)
        return TableSnapshot(read.view, describe_columns(view.statements.schema), (), files, None, select)
