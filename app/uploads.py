"""The folder or bucket that manifests are uploaded to, made of the settings."""

from connectors.pubsub.client import PubSub
from connectors.pubsub.object_events import ObjectEvents
from jobs.files import open_files
from jobs.store import JobStore
from model.principal import Principal
from model.settings import Settings
from rollout.manifests.service import ManifestService
from rollout.manifests.upload_status import UPLOAD
from rollout.manifests.uploads import UploadWatcher


def source_of(settings: Settings) -> str | None:
    """Return who owns manifests that come by upload, None where none do."""
    return None if settings.manifests is None else f"{UPLOAD}{settings.manifests.rstrip('/')}"


def open_uploads(
    settings: Settings, store: JobStore, service: ManifestService, pubsub: PubSub
) -> UploadWatcher | None:
    """Return the watcher of REFEED_MANIFESTS, None where that is not set.

    Raises:
        SettingsError, FolderUnavailableError: the bucket can't be opened.
    """
    source = source_of(settings)
    if settings.manifests is None or source is None:
        return None
    principal = Principal(source, settings.manifests_scopes)
    events = None
    if settings.manifests_subscription is not None:
        path = pubsub.subscription_path(settings.manifests_subscription)
        events = ObjectEvents(pubsub.channel, path, settings.manifests)
    files = open_files(settings.manifests)
    return UploadWatcher(store, service, files, principal, hints=events)
