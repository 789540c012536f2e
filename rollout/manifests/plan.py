"""Plans of manifests: the change of each manifest, or the reason why it is refused."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jobs.versions import Versions
from model.errors import (
    ForbiddenError,
    ManifestChangedError,
    ManifestInvalidError,
    RefeedError,
    RequestInvalidError,
)
from model.event import ValueChange, find_changes
from model.manifest_record import ManifestRecord
from model.plain_yaml import YamlDocument
from model.rollout_record import NewRollout
from model.stream_update import StreamUpdate
from rollout.manifests.manifest import Manifest, digest_of

Action = Literal["create", "update", "none", "remove"]


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """The change of a manifest by applying or removing it; ``hash`` identifies exactly this change.

    ``note`` is the result of the earlier rollout with the same content. ``warnings`` are about the job: the query
    may select other messages than intended, or another schedule merges the same source. ``record`` is the applied
    manifest, and ``update`` the newest update that it has begun.
    """

    name: str
    kind: str
    action: Action
    differences: tuple[ValueChange, ...]
    version: int
    hash: str
    note: str | None = None
    warnings: tuple[dict[str, str], ...] = ()
    record: ManifestRecord | None = None
    update: StreamUpdate | None = None


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """A plan, with the objects that carry it out; the manifest is removed if ``manifest`` is None."""

    plan: ManifestPlan
    manifest: Manifest | None = None
    rollout: NewRollout | None = None


@dataclass(frozen=True, slots=True)
class RefusedManifest:
    """A manifest that can't be applied or removed; ``faults`` have their places in the text, if known."""

    name: str | None
    kind: str | None
    error: RefeedError
    faults: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, source: YamlDocument, error: RefeedError) -> "RefusedManifest":
        """Return the refusal of a document, with the place of each fault."""
        value = source.value if isinstance(source.value, Mapping) else {}
        name, kind = (each if isinstance(each := value.get(key), str) else None for key in ("name", "kind"))
        faults = []
        for fault in error.details.get("errors") or [{"code": error.code, "message": error.message}]:
            line, column = source.place_of(fault.get("pointer", ""))
            faults.append({"line": line, "column": column, **fault})
        return cls(name, kind, error, tuple(faults))


@dataclass(frozen=True, slots=True)
class ManifestsPlan:
    """The plans of several manifests; ``hash`` identifies exactly these changes, in any order."""

    plans: tuple[ManifestPlan, ...]
    refused: tuple[RefusedManifest, ...]

    @property
    def hash(self) -> str:
        """A digest of the changes."""
        return digest_of(sorted(plan.hash for plan in self.plans))


def plan_change(name: str, manifest: Manifest | None, record: ManifestRecord | None) -> ManifestPlan:
    """Return the change of a manifest from ``record`` to ``manifest``; at most one of them is None."""
    before, digest_before = ({}, None) if record is None else (record.document, record.digest)
    after, digest_after = ({}, None) if manifest is None else (manifest.document, manifest.digest)
    action: Action = "update"
    if manifest is None:
        action = "remove"
    elif record is None:
        action = "create"
    elif digest_before == digest_after:
        action = "none"
    kind = manifest.kind if manifest is not None else record.kind if record is not None else ""
    version = 0 if record is None else record.version
    hash_ = digest_of([name, action, version, digest_before, digest_after])
    return ManifestPlan(name, kind, action, tuple(find_changes(before, after, tells_null=True)), version, hash_)


def refuse_all(refused: Sequence[RefusedManifest], names: Collection[str]) -> RefeedError:
    """Return one error for all refused manifests; ``names`` are the names of the others.

    A single manifest keeps its own error, and a caller without a scope gets the error about the scope.
    """
    errors = [each.error for each in refused]
    missing = [error for error in errors if isinstance(error, ForbiddenError)]
    if missing or (len(refused) == 1 and not names):
        return (missing or errors)[0]
    said = " ".join(error.message for error in errors)
    count = f"{len(refused)} of {len(refused) + len(names)} manifests are refused, so nothing was applied."
    return ManifestInvalidError(f"{count} {said}", errors=[fault for each in refused for fault in each.faults])


def check_versions(name: str, record: ManifestRecord | None, versions: Versions) -> None:
    """Raise ManifestChangedError unless the manifest is at one of ``versions``."""
    if versions is not None and (record is None or record.version not in versions):
        raise ManifestChangedError(f"{name} has changed since you read it.", name=name)


def check_choices(count: int, *, is_planned: bool, prune: bool, versions: Versions) -> None:
    """Raise if a call asks for what can't go together; ``count`` is the number of its manifests.

    Raises:
        RequestInvalidError: it does.
    """
    if versions is not None and (count > 1 or prune):
        said = "If-Match is for one manifest. For several, send the plan's hash."
        raise RequestInvalidError.of("parameter_invalid", said, "header:if-match")
    if prune and not is_planned:
        said = "A prune needs the hash of its plan. Send the call with validate_only first."
        raise RequestInvalidError.of("parameter_invalid", said, "query:plan")
