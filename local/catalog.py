"""The topics, subscriptions and snapshots of a data folder: a whole state, and a line for each change since."""

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from local.damage import keep_aside, report_damage
from local.files import replace_file, sync_folder, write_all
from model.errors import CheckpointCorruptError

FILE_NAME: Final = "resources.json"
CHANGES_NAME: Final = "resources.changes"
_KINDS: Final = ("logs", "topics", "subscriptions", "snapshots")
_COUNTERS: Final = ("next_number", "next_id")
# The whole state is written again when the changes outgrow it: a change costs the same with many resources.
_MIN_REWRITE_BYTES: Final = 256 * 1024


class ResourceCatalog:
    """The two files of one data folder; ``content`` is what they held at start.

    A change is durable when ``write`` returns. Not thread-safe.

    Raises:
        CheckpointCorruptError: a file can't be read; the message names a way out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / CHANGES_NAME
        self.content = read_catalog(folder)
        if not (folder / FILE_NAME).exists():
            write_catalog(folder, self.content)
        self._whole_bytes = (folder / FILE_NAME).stat().st_size
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        sync_folder(folder)
        self._size = self._read_changes()

    def _read_changes(self) -> int:
        """Bring ``content`` up to date and return where the last whole line ends; a crash may cut the next."""
        # An entry's place in a state is its name, or for a log its number.
        state = {kind: {_key(entry): entry for entry in self.content[kind]} for kind in _KINDS}
        raw = self._path.read_bytes()
        *lines, torn = raw.split(b"\n")
        for number, line in enumerate(lines, 1):
            checksum, _, body = line.partition(b" ")
            if checksum != _checksum(body):
                raise CheckpointCorruptError(
                    f"Line {number} of {self._path} is damaged. Restore the folder from a copy, or move "
                    f"{self._folder} away to begin without messages.",
                    path=str(self._path),
                )
            change = json.loads(body)
            for counter in _COUNTERS:
                self.content[counter] = max(self.content[counter], change.get(counter, 0))
            for kind in _KINDS:
                state[kind] |= {_key(entry): entry for entry in change.get(kind, ())}
                for name in change.get("deleted", ()):
                    state[kind].pop(name, None)
        self.content |= {kind: list(entries.values()) for kind, entries in state.items()}
        size = len(raw) - len(torn)
        if torn:
            report_damage("change_cut", "", self._path, offset=size, kept=keep_aside(self._path, torn))
            os.ftruncate(self._fd, size)
        return size

    def write(self, change: dict[str, Any], render: Callable[[], dict[str, Any]]) -> None:
        """Append ``change``: entries by kind, and the ``deleted`` names.

        ``render`` returns the whole state before it; it is called when the changes have outgrown that.

        Raises:
            OSError: the disk did not take it; the files are as before.
        """
        if self._size > max(_MIN_REWRITE_BYTES, self._whole_bytes):
            # A full disk only postpones it.
            with contextlib.suppress(OSError):
                self._rewrite(render())
        body = json.dumps(change).encode()
        line = _checksum(body) + b" " + body + b"\n"
        try:
            write_all(self._fd, line, self._size)
            os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def _rewrite(self, content: dict[str, Any]) -> None:
        write_catalog(self._folder, content)
        # After a crash in between, the changes are read over a state that has them: it stays as it is.
        sync_folder(self._folder)
        os.ftruncate(self._fd, 0)
        self._size = 0
        self._whole_bytes = (self._folder / FILE_NAME).stat().st_size

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _key(entry: dict[str, Any]) -> str | int:
    key: str | int = entry["config"]["name"] if "config" in entry else entry["number"]
    return key


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)


def read_catalog(folder: Path) -> dict[str, Any]:
    """Return what was last written, or nothing when there was no write yet.

    Raises:
        CheckpointCorruptError: the file can't be read, or is missing beside others; the message names a way out.
    """
    path = folder / FILE_NAME
    if not path.exists():
        if any(
            file.stat().st_size for file in (*folder.glob("topics/*/*"), folder / CHANGES_NAME) if file.exists()
        ):
            # Without names and numbers every log would look like one of a deleted topic.
            raise CheckpointCorruptError(
                f"{path} is missing, but the topics in this folder need it. Restore the file from a "
                f"copy, or move {folder} away to begin without messages.",
                path=str(path),
            )
        return {"next_number": 1, "next_id": 0, **{kind: [] for kind in _KINDS}}
    try:
        content = json.loads(path.read_text())
        # The version before wrote no checksum.
        checksum = content.pop("checksum", None)
        if checksum is not None and checksum.encode() != _checksum(_render(content)):
            raise ValueError("its checksum does not fit")  # noqa: TRY301 - one way out for all that is wrong
        # The version before wrote no next_id.
        return {"next_id": content.get("next_id", 0), **{key: content[key] for key in ("next_number", *_KINDS)}}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CheckpointCorruptError(
            f"{path} can't be read ({exc}). Restore the file from a copy, or move {folder} away "
            "to begin without messages.",
            path=str(path),
        ) from exc


def write_catalog(folder: Path, content: dict[str, Any]) -> None:
    """Replace the file by ``content``, at once or not at all.

    Raises:
        OSError: the disk did not take it; the file is as before.
    """
    checksum = _checksum(_render(content)).decode()
    replace_file(folder / FILE_NAME, _render({"checksum": checksum, **content}))


def _render(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def render_config(config: Any) -> dict[str, Any]:
    """Return a protobuf configuration as JSON-ready data."""
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def parse_config(saved: dict[str, Any], config_type: Any) -> Any:
    """Return the configuration that ``render_config`` made ``saved`` of."""
    return json_format.ParseDict(saved, config_type())


def remove_leftovers(folder: Path, next_number: int, *, logs: Container[int], acks: Container[int]) -> None:
    """Remove the files of what a crash half created or half deleted; ``logs`` and ``acks`` are the numbers in use.

    Raises:
        CheckpointCorruptError: messages are there of a topic that the catalogue does not know yet.
    """
    for topic in (folder / "topics").iterdir():
        if not topic.name.isdigit() or int(topic.name) in logs:
            continue
        if int(topic.name) >= next_number and any(path.stat().st_size for path in topic.iterdir()):
            raise CheckpointCorruptError(
                f"{topic} has the messages of a topic, but {folder / CHANGES_NAME} does not name this "
                f"topic: the end of {CHANGES_NAME} is missing. Restore {CHANGES_NAME} from a copy, or move "
                f"{topic} away.",
                path=str(topic),
            )
        shutil.rmtree(topic)
    for path in (folder / "subscriptions").iterdir():
        number, _, suffix = path.name.partition(".")
        if not number.isdigit() or int(number) in acks:
            continue
        if int(number) < next_number:
            path.unlink()
        elif suffix == "acks":
            # With content it is of a subscription that was made: the catalogue has lost it.
            raw = path.read_bytes()
            report_damage("subscription_unknown", "", path, kept=keep_aside(path, raw) if raw else None)
            path.unlink()
