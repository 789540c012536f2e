"""Which scopes each operation needs, for the OpenAPI document; the services themselves demand them."""

from collections.abc import Mapping
from typing import Any, Final

from model.principal import (
    ADMIN,
    APPROVE,
    MESSAGES,
    PLAN,
    READ,
    ROLLOUTS_APPLY,
    RUN,
    SCHEDULES_APPLY,
    STREAMS_OPERATE,
    STREAMS_READ,
)

_SEE_JOBS: Final = (READ, STREAMS_READ, STREAMS_OPERATE, SCHEDULES_APPLY, ROLLOUTS_APPLY)
_APPLY: Final = (SCHEDULES_APPLY, ROLLOUTS_APPLY)
_SEE_MANIFESTS: Final = (READ, STREAMS_READ, *_APPLY)

# One of an operation's scopes is enough; a tuple within stands for all of its scopes together.
_BY_SCOPES: Final[Mapping[tuple[str | tuple[str, ...], ...], str]] = {
    (READ,): (
        "getJobFigures listJobMissing listBackfills getBackfill readJobLogs listMergeAudits "
        "listTopics getTopicHistogram listDeadLetters listVolumes getStatus getInbox listSources "
        "getSource listSourceVersions"
    ),
    ((READ, MESSAGES),): "downloadDeadLetter",
    (PLAN,): "getPlan checkQuery",
    (RUN,): "createCompaction changeJob pauseJob resumeJob",
    (RUN, STREAMS_OPERATE, ROLLOUTS_APPLY): "revertJob",
    (RUN, PLAN): "createBackfill createMerge retryJob",
    (RUN, PLAN, STREAMS_OPERATE, ROLLOUTS_APPLY): "cancelJob",
    (APPROVE, STREAMS_OPERATE): "approveJob",
    (MESSAGES,): "listMessages downloadMessage",
    (READ, STREAMS_READ): "listEvents listStreams listStreamHistories listReleases",
    _SEE_JOBS: "listJobs getJob watchJob",
    (STREAMS_READ,): "getStream readStreamLog listSnapshots getSnapshot",
    (STREAMS_OPERATE,): (
        "attachTopic detachTopic launchStream changeStream drainStream cancelStream createSnapshot deleteSnapshot "
        "rollBackStream rejectJob"
    ),
    (PLAN, STREAMS_OPERATE, RUN): "launchTemplate",
    (STREAMS_READ, STREAMS_OPERATE): "updateStream",
    _SEE_MANIFESTS: "listManifests getManifest",
    (READ, *_APPLY): "applyManifests",
    _APPLY: "removeManifest",
    (READ, SCHEDULES_APPLY): "listSchedules getSchedule",
    (SCHEDULES_APPLY,): "pauseSchedule resumeSchedule runSchedule",
    (ADMIN,): "listAudit",
    # Every caller that is known.
    (): "openSession getCurrentSession endCurrentSession",
}
_SCOPES: Final[Mapping[str, tuple[str | tuple[str, ...], ...]]] = {
    operation: scopes for scopes, operations in _BY_SCOPES.items() for operation in operations.split()
}
# What decides between the scopes of an operation, or what it needs besides.
_WHEN: Final[Mapping[str, str]] = {
    "createBackfill": (
        "A backfill needs the scope `backfills.run`. With `validate_only`, the caller needs `backfills.plan`."
    ),
    "createMerge": "A merge needs the scope `backfills.run`. A dry run needs only `backfills.plan`.",
    "listJobs": (
        "With `backfills.read`, the list has backfills, merges and compactions. With `streams.read`, the list has "
        "updates and rollbacks of streams. With `rollouts.apply`, the list has only updates. Every scope except "
        "`rollouts.apply` also shows changes."
    ),
    **dict.fromkeys(
        ("getJob", "watchJob"),
        "An update needs `streams.read` or `rollouts.apply`, and a rollback of a stream needs `streams.read`. For "
        "a change, each of the scopes except `rollouts.apply` is enough. Any other job needs `backfills.read`.",
    ),
    "revertJob": (
        "A backfill needs `backfills.run`. An update that a manifest requested needs `rollouts.apply`, and any "
        "other update needs `streams.operate`."
    ),
    "cancelJob": (
        "To cancel a job, the caller needs `backfills.run`. For a merge's dry run, `backfills.plan` is enough. An "
        "update that a manifest requested needs `rollouts.apply`, and any other update needs `streams.operate`. "
        "For a change, the caller needs the scope of the change."
    ),
    "approveJob": (
        "A backfill needs `backfills.approve`. For a change, the caller needs the scope of the change."
    ),
    "rejectJob": "The caller needs the scope of the change.",
    "retryJob": (
        "To retry a job, the caller needs `backfills.run`. For a merge's dry run, `backfills.plan` is enough."
    ),
    "listEvents": "With `streams.read` alone, the list has only the histories of streams.",
    "launchTemplate": "The caller needs the same scopes as for a launch without a template.",
    "applyManifests": (
        "With `validate_only`, `backfills.read` is enough. If the content is unchanged, nothing happens. For a "
        "template, the caller needs `schedules.apply`. If a schedule launches the template, the caller also needs "
        "the scopes of the launch. For a schedule, the caller needs `schedules.apply` and the "
        "scopes that the schedule's job needs. For a rollout, the caller needs `rollouts.apply`. For a prune, the "
        "caller needs the same scopes as for the removal of each manifest."
    ),
    **dict.fromkeys(("listManifests", "getManifest"), "With `streams.read` alone, there are only templates."),
    "removeManifest": (
        "The caller needs `schedules.apply` for a schedule or a template, or `rollouts.apply` for a rollout."
    ),
    "updateStream": "An update needs `streams.operate`. With `validate_only`, the caller needs `streams.read`.",
    **dict.fromkeys(
        ("runSchedule", "resumeSchedule"), "The caller also needs the scopes that the schedule's job needs."
    ),
    "openSession": "The caller must send a key.",
}


def security_of(operation_id: str) -> list[dict[str, list[str]]]:
    """Return OpenAPI's security of an operation: alternatives, each with the scopes that it takes.

    "For other security scheme types, the array MAY contain a list of role names which are required for the
    execution": https://spec.openapis.org/oas/v3.1.0#security-requirement-object
    """
    return [{"bearer": [each] if isinstance(each, str) else list(each)} for each in _SCOPES[operation_id] or ((),)]


def describe_scopes(operation: dict[str, Any]) -> None:
    """Add to an operation's description what decides between its scopes."""
    if when := _WHEN.get(operation["operationId"]):
        operation["description"] = f"{operation['description'].removesuffix(when).rstrip()}\n\n{when}"
