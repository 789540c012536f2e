"""One replica of the service that watches uploads, without its API."""

import os
import sys
from pathlib import Path
from threading import Event

from app.uploads import open_uploads
from connectors.pubsub.client import PubSub
from jobs.store import open_store
from model.settings import read_settings
from rollout.manifests.service import ManifestService


def main(ready: Path) -> None:
    settings = read_settings(os.environ)
    store = open_store(settings.job_store)
    service = ManifestService(store)
    with PubSub(settings.project, settings.pubsub_address) as pubsub:
        watcher = open_uploads(settings, store, service, pubsub)
        watcher.start()
        ready.touch()
        Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
