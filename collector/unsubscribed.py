"""Keeps which SNS topics ended a subscription, over restarts, until it is confirmed again."""

import json
from collections.abc import Container, Mapping
from pathlib import Path

import structlog

from local.files import replace_file, sync_folder

_LOG = structlog.get_logger()


class UnsubscribedTopics:
    """When SNS ended a subscription, by topic ARN; those that are not on the map any more are forgotten.

    Only a warning to operators, so a file that can't be read or written is logged and stops nothing.
    """

    def __init__(self, path: Path, known: Container[str]) -> None:
        self._path = path
        self._by_arn = {arn: at for arn, at in self._read().items() if arn in known}

    @property
    def by_arn(self) -> Mapping[str, str]:
        """The time of each end as SNS wrote it."""
        return self._by_arn

    def add(self, arn: str, timestamp: str) -> None:
        """Note that a subscription ended."""
        self._by_arn[arn] = timestamp
        self._write()

    def remove(self, arn: str) -> None:
        """Note that there is a subscription again."""
        if self._by_arn.pop(arn, None) is not None:
            self._write()

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            _LOG.warning("which subscriptions SNS ended can't be read", path=str(self._path), reason=str(exc))
            return {}
        return {str(arn): str(at) for arn, at in found.items()} if isinstance(found, dict) else {}

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._by_arn).encode())
            sync_folder(self._path.parent)
        except OSError as exc:
            _LOG.warning("which subscriptions SNS ended can't be kept", path=str(self._path), reason=str(exc))
