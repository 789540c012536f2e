"""What tests write to an archive in a bucket, and what they read and count."""

from datetime import UTC, datetime

from connectors.lake.archive import LakeArchive
from model.archive import Attempt, IdSpan
from tests.worlds.bucket import Proxy
from tests.worlds.tables import pulled


def append(archive: LakeArchive, number: int, epoch: int = 1) -> None:
    file = archive.writer().write([("orders", "s", pulled(b"x", first=number))])
    archive.commit([file], Attempt("s", number, "l", epoch, commit_id=number))


def ids(archive: LakeArchive) -> list[str]:
    long_ago = datetime.fromtimestamp(0, UTC)
    found = archive.another().read_ids(IdSpan(long_ago, long_ago))
    return sorted((one for batch in found for one in batch.column("message_id").to_pylist()), key=int)


def on_the_log(proxy: Proxy) -> list[str]:
    """Return the requests about the table's log, each as its method and the version's number."""
    found = [request.partition(" ") for request in proxy.requests if "_delta_log" in request]
    return [f"{method} {path.rpartition('/')[2].lstrip('0')}" for method, _, path in found]


def puts_on_the_log(proxy: Proxy) -> list[str]:
    """Return the writes to the table's log in their order; delta-rs reads ahead, so a read can come later."""
    return [request for request in on_the_log(proxy) if request.startswith("PUT")]
