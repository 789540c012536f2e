"""A folder in a bucket, whose objects are put where there are none: one client of Amazon S3 and Cloud Storage."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

# No further try begins after this time; one that is not answered ends after 30 s, the client's own default.
_RETRY_SECONDS: Final = 60


class Bucket:
    """The objects below ``uri``; credentials are the platform's own, from where delta-rs has them too."""

    def __init__(self, uri: str) -> None:
        # A lake on a disk needs none of it.
        import obstore
        from obstore.store import from_url

        options: dict[str, Any] = {}
        if not uri.startswith("file:"):
            options["retry_config"] = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        self._client = obstore
        with _as_os_error():
            self._store = from_url(uri, **options)

    def put_new(self, name: str, content: bytes) -> bool:
        """Put an object where there is none; False where there is one with another content, or comes one.

        Two writers can't both put one. A store whose answer was lost says of a second try that the object is
        there, and it is this one: so ``content`` must be nobody else's.

        Raises:
            OSError: it may be there, or be put later.
        """
        with _as_os_error():
            try:
                self._client.put(self._store, name, content, mode="create", use_multipart=False)
            except self._client.exceptions.AlreadyExistsError:
                return self._read(name) == content
        return True

    def _read(self, name: str) -> bytes | None:
        try:
            return bytes(self._client.get(self._store, name).bytes())
        except FileNotFoundError:
            # A store refuses one of two requests at the same moment, and the other one may come to nothing.
            return None


@contextmanager
def _as_os_error() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as exc:
        # What follows the first line is of use to nobody.
        raise OSError(str(exc).partition("\n")[0]) from exc
