"""Where it stands who may write: beside the tables."""

from typing import Protocol


class LeaseStore(Protocol):
    """Where leases are kept: with the tables, so that streams of other homes and machines see them."""

    def read_lease(self, name: str) -> bytes | None:
        """Return what the holder of the highest epoch wrote last, None when nobody did."""

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        """Replace what the holder of ``epoch`` wrote; LeaseLostError says that it is not the highest any more."""

    def take_lease(self, name: str) -> int:
        """Return a new epoch; commits under an older one are refused from now on."""
