"""The full name of a table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableId:
    """A table's full name; its companions lie in the same dataset and begin with its name."""

    project: str
    dataset: str
    table: str

    @classmethod
    def parse(cls, text: str, default_project: str) -> "TableId":
        """Return the id that ``dataset.table`` or ``project.dataset.table`` names.

        Example:
            >>> TableId.parse("backup.messages", "shop")
            TableId(project='shop', dataset='backup', table='messages')
        """
        *project, dataset, table = text.rsplit(".", 2)
        return cls(project[0] if project else default_project, dataset, table)

    def companion(self, name: str) -> "TableId":
        """Return the table of this name that belongs to this one.

        Example:
            >>> str(TableId("shop", "backup", "messages").companion("attempts"))
            'shop.backup.messages_attempts'
        """
        return self.beside(f"{self.table}_{name}")

    def beside(self, name: str) -> "TableId":
        """Return the table of this name in the same dataset."""
        return TableId(self.project, self.dataset, name)

    @property
    def path(self) -> str:
        """The name that the Storage APIs use."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"

    def __str__(self) -> str:
        return f"{self.project}.{self.dataset}.{self.table}"
