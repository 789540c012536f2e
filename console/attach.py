"""A topic is attached or detached by a click, after a look at what that does."""

from collections.abc import Mapping
from typing import Any, Final

from console.forms import Action, ActionPage, FormField
from console.visit import Visit
from model.principal import STREAMS_OPERATE

_EXACTLY_ONCE: Final = FormField(
    "exactly_once",
    "Exactly-once delivery",
    kind="checkbox",
    help="Pub/Sub confirms each acknowledgement, which is slower. The archive has each message once, even "
    "without this option.",
)
_UPDATE: Final = FormField("update", "Change these settings", kind="checkbox")


def _describe_attach(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    topic = visit.path_params["topic"]
    found = visit.api.attach_topic(topic, dry_run=True)
    fields: tuple[FormField, ...] = (_hidden_plan(found, given),)
    if found["was_attached"]:
        effects = [
            f"{topic} is already backed up through the subscription {found['subscription']}.",
            "This subscription stays.",
        ]
        effects += [
            f"Its {each['field']} is {each['found']}. A new subscription would have {each['wanted']}."
            for each in found["differences"]
        ]
        fields += (_UPDATE,) if found["differences"] else ()
    else:
        effects = [
            *([f"The topic {topic} does not exist. Refeed creates the topic."] if found["creates_topic"] else []),
            f"Refeed creates the subscription {found['subscription']}.",
            f"The subscription's acknowledgement deadline is {found['ack_deadline_seconds']} s.",
            f"The subscription's filter excludes Refeed's own replays: {found['filter']}",
            "Refeed archives all messages that are published from then on.",
            "A running backup finds the subscription within seconds.",
            "Refeed does not archive earlier messages.",
        ]
        fields += (_EXACTLY_ONCE,)
    return ActionPage(
        title=f"Back up: {topic}",
        effects=tuple(effects),
        button="Back it up",
        back="/topics",
        fields=fields,
    )


def _attach(visit: Visit, fields: Mapping[str, str]) -> str:
    visit.api.attach_topic(
        visit.path_params["topic"],
        plan=fields.get("plan") or None,
        exactly_once=bool(fields.get("exactly_once")),
        update=bool(fields.get("update")),
    )
    return "/topics"


def _describe_detach(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    topic = visit.path_params["topic"]
    found = visit.api.detach_topic(topic, dry_run=True)
    waiting = found["backlog_messages"]
    many = "An unknown number of messages waits" if waiting is None else f"{waiting:,} messages wait"
    return ActionPage(
        title=f"Stop backing up: {topic}",
        effects=(
            f"Refeed deletes the subscription {found['subscription']}.",
            f"{many} in the subscription. These messages are lost.",
            "Refeed does not archive later messages. Archived messages stay.",
            "If the topic has the label of REFEED_BACKUP_LABEL, the backup attaches the topic again.",
        ),
        button="Stop backing it up",
        back="/topics",
        fields=(_hidden_plan(found, given),),
        typed=topic,
    )


def _detach(visit: Visit, fields: Mapping[str, str]) -> str:
    visit.api.detach_topic(visit.path_params["topic"], plan=fields.get("plan") or None)
    return "/topics"


def _hidden_plan(found: Mapping[str, Any], given: Mapping[str, str]) -> FormField:
    """Return the plan that the action is bound to: the one that the page first showed."""
    return FormField("plan", "plan", kind="hidden", value=given.get("plan") or found["plan"])


ATTACH_ACTIONS: Final = (
    Action("/topics/{topic}/attach", STREAMS_OPERATE, _describe_attach, _attach),
    Action("/topics/{topic}/detach", STREAMS_OPERATE, _describe_detach, _detach),
)
