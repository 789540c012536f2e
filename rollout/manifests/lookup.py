"""Finds an applied manifest by its name."""

from jobs.store import JobStore
from model.errors import ManifestNotFoundError
from model.manifest_record import ManifestRecord
from model.naming import did_you_mean


def find_manifest(store: JobStore, name: str) -> ManifestRecord | None:
    """Return the manifest of this name, None if there is none."""
    try:
        return store.get_manifest(name)
    except ManifestNotFoundError:
        return None


def get_manifest(store: JobStore, name: str, kind: str | None = None) -> ManifestRecord:
    """Return the manifest of this name.

    Raises:
        ManifestNotFoundError: there is none, or it is of another kind than ``kind``; the error has similar names.
    """
    found = find_manifest(store, name)
    noun = "manifest" if kind is None else kind.lower()
    if found is None:
        meant = did_you_mean(name, [record.name for record in store.list_manifests(kind=kind)])
        raise ManifestNotFoundError(f"There is no {noun} {name[:80]}.{meant}", name=name[:80])
    if kind not in {None, found.kind}:
        raise ManifestNotFoundError(f"{name} is a {found.kind}, not a {noun}.", name=name)
    return found
