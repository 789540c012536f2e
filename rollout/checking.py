"""Checks updates of a home's streams: their records, their state, and the sources that a release reads."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from connectors.spark.environment import count_threads
from model.errors import CheckpointCorruptError, RegistryError, ReleaseInvalidError, StreamElsewhereError
from model.principal import Principal
from model.schema import RowSchema
from model.settings import Settings
from model.stream_options import StreamKind, parse_options
from model.stream_record import StreamRecord
from pipeline.plan import PlanFile
from pipeline.registry import Source
from rollout.check import CheckedSource, StreamSide, UpdateCheck, check_update
from rollout.formats import ReleaseFormats, own_formats
from rollout.releases import Releases
from rollout.service import StreamService
from streams.folder import StreamFolder, has_state, read_newest_status
from streams.snapshot import PLAN_FILE
from streams.status import address_of
from warehouse.open import warehouse_from_json
from warehouse.port import Warehouse

# The process starts, imports the registry's readers, and reads the registry, perhaps from a bucket.
_READ_SECONDS: Final = 120.0
_TOLD_CHARACTERS: Final = 2000


class UpdateChecker:
    """Checks updates of the streams whose state is in this home, against the present settings of the home.

    ``environment`` is the environment of a release's process, without the variables that select its code.
    """

    def __init__(
        self, settings: Settings, releases: Releases, warehouse: Warehouse, environment: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._releases = releases
        self._warehouse = warehouse
        self._environment = environment

    def check(
        self,
        record: StreamRecord,
        *,
        release: str | None,
        options: Mapping[str, Any],
        mapping: Mapping[str, str | None],
    ) -> UpdateCheck:
        """Return whether the stream can continue as ``release`` (None: the installed one) with other ``options``.

        Nothing is changed. The running sources are those in the pipeline's plan, not those in the registry.

        Raises:
            ReleaseNotFoundError: one of the two releases is not in this home.
            RequestInvalidError: some options are invalid; the error names all of them.
            RegistryError: the wanted release can't read the registry, or finds faults in it.
            CheckpointCorruptError: the plan can't be read.
        """
        merged = {**record.options, **options}
        wanted_options = parse_options(record.kind, {k: v for k, v in merged.items() if v is not None})
        return check_update(
            self._running(record), self._wanted(record, release, wanted_options.to_json()), mapping
        )

    def has_state(self, record: StreamRecord) -> bool:
        """Whether this home has the stream's state, or the stream never ran."""
        return has_state(record, self._settings.home)

    def _running(self, record: StreamRecord) -> StreamSide:
        # The place at the stream's last start; a stream that has not run has no place yet.
        status = read_newest_status(self._settings.home, record.name) or {}
        place: Mapping[str, Any] = status.get("place") or {}
        found: dict[str, Any] = {
            "warehouse": place.get("warehouse", self._warehouse.name),
            "address": place.get("address"),
            "sources": None,
        }
        plan = StreamFolder.of(self._settings.home, record.name).state / PLAN_FILE
        if record.kind is StreamKind.PIPELINE:
            # Without a plan, the group has not found its sources yet.
            found = {**found, "sources": []} if not plan.exists() else _of_plan(plan)
        return StreamSide(
            release=record.release,
            formats=self._formats(record.release),
            options=record.parsed_options().to_json(),
            kind=record.kind,
            project=place.get("project"),
            home=None if record.home is None else f"{record.home.host}:{record.home.path}",
            **found,
        )

    def _wanted(self, record: StreamRecord, release: str | None, options: Mapping[str, Any]) -> StreamSide:
        own = f"{gethostname()}:{StreamFolder.of(self._settings.home, record.name).state}"
        known = None if record.home is None else f"{record.home.host}:{record.home.path}"
        is_pipeline = record.kind is StreamKind.PIPELINE
        return StreamSide(
            release=release,
            formats=self._formats(release),
            options=options,
            warehouse=self._warehouse.name,
            project=self._settings.project,
            address=address_of(self._warehouse.to_json()),
            home=known if self.has_state(record) else own,
            sources=self._read_sources(release) if is_pipeline else None,
            threads=None if record.kind is StreamKind.KINESIS else count_threads(self._settings.spark_master),
        )

    def _formats(self, release: str | None) -> ReleaseFormats:
        return own_formats() if release is None else self._releases.get_release(release).formats

    def _read_sources(self, release: str | None) -> Sequence[CheckedSource]:
        """Return all sources of the registry as the release reads it; releases may read it differently."""
        started = self._releases.start(release, self._environment)
        try:
            ran = started.run("source", "check", "--json", seconds=_READ_SECONDS)
            if ran.returncode:
                raise RegistryError(_detail_of(ran.stderr))
            return [_of_json(source) for source in json.loads(ran.stdout)["sources"]]
        except subprocess.TimeoutExpired as exc:
            raise RegistryError(f"The registry was not read within {_READ_SECONDS:.0f} s.") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise ReleaseInvalidError(f"{release} does not say what it reads from the registry: {exc}") from exc


class CheckService:
    """Checks updates for callers, in a home that has the streams' state."""

    def __init__(self, streams: StreamService, checker: UpdateChecker) -> None:
        self._streams = streams
        self._checker = checker

    def check(
        self,
        name: str,
        *,
        principal: Principal,
        release: str | None,
        options: Mapping[str, Any],
        mapping: Mapping[str, str | None],
    ) -> UpdateCheck:
        """Return the check of the stream ``name`` by :meth:`UpdateChecker.check`; it may take seconds.

        Raises:
            ForbiddenError: the ``principal`` lacks the scope.
            StreamNotFoundError: no stream was ever launched under the name.
            StreamElsewhereError: the stream's state is in another home.
            RefeedError: as :meth:`UpdateChecker.check`.
        """
        record = self._streams.get(name, principal=principal)
        if record.home is not None and not self._checker.has_state(record):
            message = (
                f"The state of {name} is in the home {record.home.path} on {record.home.host}, but this API "
                f"has another home. Call an API that has this home."
            )
            raise StreamElsewhereError(message, host=record.home.host, path=record.home.path)
        return self._checker.check(record, release=release, options=options, mapping=mapping)


def _of_plan(path: Path) -> dict[str, Any]:
    """Return the running sources, and the place of their tables.

    Raises:
        CheckpointCorruptError: the plan can't be read.
    """
    try:
        place = json.loads(path.read_text())["warehouse"]
        warehouse = warehouse_from_json(place)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CheckpointCorruptError(f"The plan {path} can't be read: {exc}", file=str(path)) from exc
    plan = PlanFile(path, warehouse).read()
    assert plan is not None, "it has just been read"
    return {
        "warehouse": warehouse.name,
        "address": address_of(place),
        "sources": [_of_source(each.source) for each in plan.sources],
    }


def _of_source(source: Source) -> CheckedSource:
    same = {each.name: getattr(source, each.name) for each in fields(CheckedSource)}
    return CheckedSource(**{**same, "publish": source.publish or None})


def _of_json(found: Mapping[str, Any]) -> CheckedSource:
    schema = None if found["schema"] is None else RowSchema.from_json(found["schema"])
    texts = {name: str(found[name]) for name in ("name", "topic", "subscription", "group", "staging")}
    # Earlier releases do not print the field publish.
    return CheckedSource(**texts, schema=schema, reporting=found.get("reporting"), publish=found.get("publish"))


def _detail_of(problem: str) -> str:
    """Return the detail of the problem that a command printed with --json, or the end of any other output."""
    try:
        found = json.loads(problem.strip().splitlines()[-1])
        faults = [f"{each['pointer']}: {each['message']}." for each in found.get("errors", ())]
        return " ".join([str(found["detail"]), *faults])
    except (ValueError, KeyError, IndexError, TypeError):
        return problem[-_TOLD_CHARACTERS:].strip()
