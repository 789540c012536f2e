"""Checks a backfill before it is made, and renders the specification for its driver."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from backfill.plan.options import SelectionBounds
from backfill.plan.plan import PlanTarget, warn_of_target
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from connectors.pubsub.client import PubSub, SubscriptionInfo
from jobs.store import StoredPlan
from model.errors import (
    NothingSelectedError,
    PlanExpiredError,
    PlanMismatchError,
    ReplayArchivedError,
    RequestInvalidError,
    SubscriptionNotFoundError,
    TargetSubscriptionError,
    TopicNotFoundError,
    fault_at,
)
from model.filters import FilterError, parse_filter
from model.message import (
    BACKUP_SUBSCRIPTION_PREFIX,
    REPLAY_TAGS,
    TARGET_ATTRIBUTE,
    parse_resource_id,
    redact_tokens,
    replay_filter,
    replay_token,
)
from model.moment import render_moment
from model.naming import did_you_mean
from model.principal import Principal
from model.window import Window


def check_topic(pubsub: PubSub, request: BackfillRequest, principal: Principal) -> None:
    """Raise unless the target exists, or ``create_topic`` allows to create it; creates nothing itself.

    Of the topics whose names are close, the error names those that ``principal`` may publish to.

    Raises:
        TopicNotFoundError: it does not exist.
    """
    topic = parse_resource_id(request.topic)
    if request.create_topic or pubsub.topic_exists(topic):
        return
    known = [name for name in pubsub.list_topics() if principal.may_publish_to(name)]
    raise TopicNotFoundError(
        f"There is no topic {topic} in the project "
        f"{pubsub.project}.{did_you_mean(topic, known)} To create the topic, use create_topic "
        "(--create-topic).",
        topic=topic,
        errors=[fault_at("/topic", TopicNotFoundError.code, f"There is no topic {topic}.")],
    )


def check_subscriptions(
    pubsub: PubSub, request: BackfillRequest, settings: BackfillSettings
) -> list[dict[str, str]]:
    """Raise unless the subscriptions that the request names, and those that back its target up, will do.

    Returns the warnings about the target: nobody may receive what is published.

    Raises:
        ReplayArchivedError: a backup subscription of the target would let the replay into the archive again.
        TargetSubscriptionError: ``target_subscription`` does not select what is meant for it.
        SubscriptionNotFoundError: there is none of a name.
    """
    found = pubsub.list_subscriptions(request.topic)
    token = replay_token(settings.replay_secret, request.topic)
    check_backups(found, token)
    if request.target_subscription is not None:
        _check_target(request.target_subscription, found, request)
    if request.yield_to is not None:
        # Raises when there is none; it may be one of any topic of the project.
        pubsub.get_subscription(request.yield_to.subscription)
    return warn_of_target(target_of(request, found, token, settings))


def target_of(
    request: BackfillRequest, subscriptions: Sequence[SubscriptionInfo], token: str, settings: BackfillSettings
) -> PlanTarget:
    """Return where the request would publish to; ``subscriptions`` are all of its topic."""
    is_order_at_risk = request.ordering == "by_key" and settings.emulator_host is None
    return PlanTarget(
        request.topic, token, subscriptions, request.added_attributes(), is_order_at_risk=is_order_at_risk
    )


def check_backups(subscriptions: Sequence[SubscriptionInfo], token: str) -> None:
    """Raise unless every backup subscription among a topic's leaves out replays with ``token``.

    Raises:
        ReplayArchivedError: one would let them into the archive again.
    """
    wanted = replay_filter(token)
    for subscription in subscriptions:
        if subscription.id.startswith(BACKUP_SUBSCRIPTION_PREFIX) and subscription.filter != wanted:
            shown = redact_tokens(subscription.filter)
            raise ReplayArchivedError(
                f"The filter {shown!r} of the backup subscription {subscription.id} does not drop the "
                "replays of this deployment, so they would be archived again.",
                subscription=subscription.id,
            )


def check_lives(plan: StoredPlan | None, plan_id: str) -> StoredPlan:
    """Return the plan while it counts.

    Raises:
        PlanExpiredError: it has expired, or there is none.
    """
    if plan is None or plan.expires_at <= datetime.now(UTC):
        raise PlanExpiredError(
            f"The plan {plan_id[:80]!r} does not exist, or it has expired. Plan again.", plan_id=plan_id[:80]
        )
    return plan


def check_plan(plan: StoredPlan | None, fingerprint: str, request: BackfillRequest) -> StoredPlan:
    """Return the plan that the request quotes when it is of what it asks for, and still counts.

    Raises:
        PlanExpiredError: it has expired, or there is none.
        PlanMismatchError: it is of another query, other parameters or another topic.
    """
    plan = check_lives(plan, str(request.plan_id))
    if plan.fingerprint != fingerprint:
        raise PlanMismatchError(plan_id=plan.id)
    return plan


def check_rows(rows: int | None, request: BackfillRequest, bounds: SelectionBounds) -> None:
    """Raise when the plan's rows are known and the request or the deployment does not allow that many, or none.

    Raises:
        RequestInvalidError: there are more than a bound allows, or none without ``allow_empty`` or with
            ``fail_if_empty``.
    """
    if rows == 0 and request.fail_if_empty:
        message = "The plan selects nothing, and the request has fail_if_empty."
        raise RequestInvalidError.of(NothingSelectedError.code, message, "/fail_if_empty")
    if rows == 0 and not request.allow_empty:
        message = "The plan selects nothing. To create the backfill anyway, use allow_empty (--allow-empty)."
        raise RequestInvalidError.of(NothingSelectedError.code, message, "/allow_empty")
    if rows is not None and bounds.max_rows is not None and rows > bounds.max_rows:
        message = (
            f"The plan has {rows} rows, but a selection may have only {bounds.max_rows} "
            "(REFEED_SELECTION_MAX_ROWS)."
        )
        raise RequestInvalidError.of("too_many_rows", message, "/query")
    if rows is not None and request.max_rows is not None and rows > request.max_rows:
        message = f"The plan has {rows} rows, but max_rows allows only {request.max_rows}."
        raise RequestInvalidError.of("too_many_rows", message, "/max_rows")


def check_bytes(bytes_scanned: int, request: BackfillRequest) -> None:
    """Raise when the query may read more bytes than ``max_bytes_billed``.

    Raises:
        RequestInvalidError: it may.
    """
    if request.max_bytes_billed is not None and bytes_scanned > request.max_bytes_billed:
        message = (
            f"The query may read {bytes_scanned} bytes, but max_bytes_billed allows only "
            f"{request.max_bytes_billed}."
        )
        raise RequestInvalidError.of("too_many_bytes", message, "/max_bytes_billed")


def render_specification(
    job_id: str,
    request: BackfillRequest,
    source: Mapping[str, Any],
    settings: BackfillSettings,
    pubsub: PubSub,
) -> Mapping[str, Any]:
    """Return all that the job's driver and tasks need to know; ``source`` is the query and the warehouse."""
    return {
        **source,
        "target": {
            "backfill_id": job_id,
            "topic_path": pubsub.topic_path(request.topic),
            "emulator_host": settings.emulator_host,
            "replay_token": replay_token(settings.replay_secret, request.topic),
        },
        "run": {
            **request.to_json(),
            "attributes": request.added_attributes(),
            "bounds": asdict(settings.bounds),
            "approval_rows": settings.approval_rows or None,
            "only": "all",
        },
    }


def render_window(window: Window) -> dict[str, str | None]:
    """Return ``window`` as the API shows it."""
    return {"from": render_moment(window.start), "to": render_moment(window.end)}


def _check_target(name: str, found: Sequence[SubscriptionInfo], request: BackfillRequest) -> None:
    subscription = next((one for one in found if one.id == name), None)
    if subscription is None:
        raise SubscriptionNotFoundError(f"The topic {request.topic} has no subscription {name}.", name=name)
    tags = dict.fromkeys(REPLAY_TAGS, "x")
    try:
        message_filter = parse_filter(subscription.filter)
    except FilterError as exc:
        raise TargetSubscriptionError(f"The filter of {name} can't be read: {exc}", subscription=name) from exc
    if not message_filter.matches({**tags, **request.attributes, TARGET_ATTRIBUTE: name}):
        raise TargetSubscriptionError(
            f"The filter of {name}, {redact_tokens(subscription.filter)!r}, drops messages with "
            f"{TARGET_ATTRIBUTE} = {name!r}.",
            subscription=name,
        )
