"""What the API does about the backup of topics."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote


class BackupCalls:
    """The API's calls that attach and detach topics; see :class:`client.api.RefeedApi`."""

    def __init__(self, call: Callable[..., dict[str, Any]]) -> None:
        self._call = call

    def attach(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        plan: str | None = None,
        exactly_once: bool = False,
        update: bool = False,
    ) -> dict[str, Any]:
        """Back a topic up, or say what that would do; ``plan`` is that of the dry run that it has to be."""
        body = {"dry_run": dry_run, "plan": plan, "exactly_once": exactly_once, "update": update}
        return self._call("POST", _path(topic, "attach"), json=body)

    def detach(self, topic: str, *, dry_run: bool = False, plan: str | None = None) -> dict[str, Any]:
        """Stop backing a topic up, or say what that would do."""
        return self._call("POST", _path(topic, "detach"), json={"dry_run": dry_run, "plan": plan})


def _path(topic: str, verb: str) -> str:
    return f"/topics/{quote(topic, safe='')}:{verb}"
