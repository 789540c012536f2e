"""Which permission each call needs and which role gives it, as Google's pages say."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

# (what it is asked of, the permission). Of BigQuery's calls "dataset" stands for the dataset that the call names.
Need = tuple[str, str]

# BigQuery: https://cloud.google.com/bigquery/docs/access-control ("BigQuery permissions") and the REST reference's
# "IAM permissions" of each method. A job's creator may read and cancel it without a permission ("jobs.get",
# "jobs.cancel": "You can always ... a job that you created").
# Storage Write: "To use the Storage Write API, you must have bigquery.tables.updateData permissions."
# https://cloud.google.com/bigquery/docs/write-api#required_permissions
# Storage Read: "bigquery.readsessions.create on the project, bigquery.tables.getData on the table",
# https://cloud.google.com/bigquery/docs/reference/storage#permissions
# Pub/Sub: the table "Required permissions" of https://cloud.google.com/pubsub/docs/access-control
# Cloud Monitoring: https://cloud.google.com/monitoring/access-control
CALLS: Final[Mapping[str, tuple[Need, ...]]] = {
    "datasets.get": (("dataset", "bigquery.datasets.get"),),
    "datasets.insert": (("project", "bigquery.datasets.create"),),
    "tables.get": (("dataset", "bigquery.tables.get"),),
    "tables.list": (("dataset", "bigquery.tables.list"),),
    "tables.insert": (("dataset", "bigquery.tables.create"),),
    "tables.patch": (("dataset", "bigquery.tables.update"),),
    "tables.delete": (("dataset", "bigquery.tables.delete"),),
    "tabledata.list": (("dataset", "bigquery.tables.getData"),),
    "jobs.insert": (("project", "bigquery.jobs.create"),),
    "jobs.query": (("project", "bigquery.jobs.create"),),
    "jobs.upload": (("project", "bigquery.jobs.create"),),
    "jobs.get": (),
    "jobs.cancel": (),
    "jobs.getQueryResults": (),
    "CreateWriteStream": (("dataset", "bigquery.tables.updateData"),),
    "GetWriteStream": (("dataset", "bigquery.tables.updateData"),),
    "AppendRows": (("dataset", "bigquery.tables.updateData"),),
    "FlushRows": (("dataset", "bigquery.tables.updateData"),),
    "FinalizeWriteStream": (("dataset", "bigquery.tables.updateData"),),
    "BatchCommitWriteStreams": (("dataset", "bigquery.tables.updateData"),),
    "CreateReadSession": (("project", "bigquery.readsessions.create"),),
    "ReadRows": (("project", "bigquery.readsessions.getData"),),
    "Publisher/GetTopic": (("project", "pubsub.topics.get"),),
    "Publisher/ListTopicSubscriptions": (("project", "pubsub.topics.get"),),
    "Publisher/ListTopics": (("project", "pubsub.topics.list"),),
    "Publisher/CreateTopic": (("project", "pubsub.topics.create"),),
    "Publisher/UpdateTopic": (("project", "pubsub.topics.update"),),
    "Publisher/Publish": (("topic", "pubsub.topics.publish"),),
    "Subscriber/GetSubscription": (("project", "pubsub.subscriptions.get"),),
    "Subscriber/ListSubscriptions": (("project", "pubsub.subscriptions.list"),),
    "Subscriber/CreateSubscription": (
        ("project", "pubsub.subscriptions.create"),
        ("project", "pubsub.topics.attachSubscription"),
    ),
    "Subscriber/UpdateSubscription": (("project", "pubsub.subscriptions.update"),),
    "Subscriber/DeleteSubscription": (("project", "pubsub.subscriptions.delete"),),
    "Subscriber/Pull": (("subscription", "pubsub.subscriptions.consume"),),
    "Subscriber/Acknowledge": (("subscription", "pubsub.subscriptions.consume"),),
    "Subscriber/ModifyAckDeadline": (("subscription", "pubsub.subscriptions.consume"),),
    # "pubsub.snapshots.create on the containing Cloud project and pubsub.subscriptions.consume permission on the
    # source subscription."
    "Subscriber/CreateSnapshot": (
        ("project", "pubsub.snapshots.create"),
        ("subscription", "pubsub.subscriptions.consume"),
    ),
    "Subscriber/ListSnapshots": (("project", "pubsub.snapshots.list"),),
    "Subscriber/DeleteSnapshot": (("project", "pubsub.snapshots.delete"),),
    "Subscriber/Seek": (("subscription", "pubsub.subscriptions.consume"), ("project", "pubsub.snapshots.seek")),
    "MetricService/ListTimeSeries": (("project", "monitoring.timeSeries.list"),),
}

# What the roles give of these, after "BigQuery predefined IAM roles" and "Pub/Sub roles" of the same pages.
# Policy tags: "bigquery.tables.setCategory" is the owner's alone, reading a tagged column is the Fine-Grained
# Reader's
# (datacatalog.categories.fineGrainedGet), https://cloud.google.com/bigquery/docs/column-level-security#permissions
_VIEWER: Final = {
    "bigquery.datasets.get",
    "bigquery.tables.get",
    "bigquery.tables.getData",
    "bigquery.tables.list",
}
_EDITOR: Final = _VIEWER | {f"bigquery.tables.{verb}" for verb in ("create", "delete", "update", "updateData")}
_SESSIONS: Final = {"bigquery.readsessions.create", "bigquery.readsessions.getData"}
_PUBSUB_VIEWER: Final = {
    f"pubsub.{kind}.{verb}" for kind in ("snapshots", "subscriptions", "topics") for verb in ("get", "list")
}
_SUBSCRIBER: Final = {"pubsub.snapshots.seek", "pubsub.subscriptions.consume", "pubsub.topics.attachSubscription"}
ROLES: Final[Mapping[str, set[str]]] = {
    "roles/bigquery.dataViewer": _VIEWER,
    "roles/bigquery.dataEditor": _EDITOR,
    "roles/bigquery.dataOwner": _EDITOR | {"bigquery.tables.setCategory"},
    "roles/bigquery.jobUser": {"bigquery.jobs.create"},
    "roles/bigquery.readSessionUser": _SESSIONS,
    "roles/bigquery.user": {"bigquery.datasets.create", "bigquery.jobs.create", *_SESSIONS},
    "roles/pubsub.viewer": _PUBSUB_VIEWER,
    "roles/pubsub.subscriber": _SUBSCRIBER,
    "roles/pubsub.publisher": {"pubsub.topics.publish"},
    "roles/pubsub.editor": {
        *_PUBSUB_VIEWER,
        *_SUBSCRIBER,
        "pubsub.topics.publish",
        *(
            f"pubsub.{k}.{v}"
            for k in ("snapshots", "subscriptions", "topics")
            for v in ("create", "delete", "update")
        ),
    },
    "roles/monitoring.viewer": {"monitoring.timeSeries.list"},
}

# The datasets by what they hold, as the tests name them.
KINDS: Final = {"backup": "archive", "staging": "staging", "reporting": "reporting"}
_DATASET: Final = re.compile(r"datasets/(\w+)")
_MENTIONED: Final = re.compile(r"\b(backup|staging|reporting)`?\.`?\w")
_CHANGED: Final = re.compile(
    r"\b(?:INSERT(?:\s+INTO)?|MERGE(?:\s+INTO)?|UPDATE|DELETE(?:\s+FROM)?)\s+`?(?:[\w-]+`?\.`?)?(backup|staging|reporting)`?\."
)
_MADE: Final = re.compile(
    r"\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:TABLE|VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?`?(?:[\w-]+`?\.`?)?(backup|staging|reporting)`?\."
)


def needs_of_call(method: str, resource: str) -> set[Need]:
    """Return what one recorded call needs; a method that is not in the table is a KeyError."""
    found = _DATASET.search(resource)
    kind = KINDS[found[1]] if found else "project"
    return {(kind if where == "dataset" else where, permission) for where, permission in CALLS[method]}


def needs_of_job(job: Any) -> set[Need]:
    """Return what a job of BigQuery's needs beside ``bigquery.jobs.create``: by its texts and its destination."""
    needs: set[Need] = set()
    text = getattr(job, "query", "") or ""
    needs |= {(KINDS[name], "bigquery.tables.getData") for name in _MENTIONED.findall(text)}
    needs |= {(KINDS[name], "bigquery.tables.updateData") for name in _CHANGED.findall(text)}
    made = _MADE.findall(text)
    destination = getattr(job, "destination", None)
    if destination is not None and destination.dataset_id in KINDS:
        made.append(destination.dataset_id)
    for name in made:
        needs |= {(KINDS[name], f"bigquery.tables.{verb}") for verb in ("create", "updateData")}
    return needs


def granted(grants: Iterable[tuple[str, str]]) -> set[Need]:
    """Return what roles give, each on what it is granted on; one on the project counts for all in it."""
    found: set[Need] = set()
    for where, role in grants:
        places = {where} if where != "project" else {"project", "topic", "subscription", *KINDS.values()}
        found |= {(place, permission) for place in places for permission in ROLES[role]}
    return found
