"""Who calls: a name for the history, the scopes it holds and the topics it may publish to."""

from dataclasses import dataclass
from typing import Final

from model.errors import ForbiddenError

READ: Final = "backfills.read"
PLAN: Final = "backfills.plan"
RUN: Final = "backfills.run"
APPROVE: Final = "backfills.approve"
ADMIN: Final = "backfills.admin"
MESSAGES: Final = "messages.read"
STREAMS_READ: Final = "streams.read"
STREAMS_OPERATE: Final = "streams.operate"
SCHEDULES_APPLY: Final = "schedules.apply"
ROLLOUTS_APPLY: Final = "rollouts.apply"

# scope -> what it lets its holder do
SCOPES: Final[dict[str, str]] = {
    READ: "see backfills, merges and compactions with their histories, logs and dead letters; see topics, "
    "schedules and the list of streams",
    PLAN: "plan backfills, and make dry runs of merges. To see the payloads of a plan's samples, the caller "
    "also needs messages.read",
    RUN: (
        "create, change, pause, resume, cancel, retry and revert backfills; create, cancel "
        "and retry merges. A key's limit to topics does not apply to merges"
    ),
    APPROVE: "approve a large backfill that somebody else created",
    MESSAGES: "read archived messages, and the payloads of samples and dead letters. If a key is limited to "
    "topics, it can read only messages of these topics",
    STREAMS_READ: "see streams, their options and their histories",
    STREAMS_OPERATE: "launch, change, drain, cancel, snapshot and roll back streams; attach and detach topics. "
    "If a key is limited to topics, it can attach, detach and publish Kinesis records to only these topics",
    SCHEDULES_APPLY: "apply, remove, pause and resume schedules of jobs that the caller may start",
    ROLLOUTS_APPLY: "apply, remove, reverse and cancel rollouts, which change the release or options of streams",
    ADMIN: "do everything that the other scopes allow, and read the audit log",
}
# What a manifest that came by upload needs at most: the least of who can write there, unless a setting says less.
UPLOAD_SCOPES: Final = frozenset({SCHEDULES_APPLY, ROLLOUTS_APPLY, RUN, STREAMS_OPERATE})


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose identity is proven; ``topics`` None means every topic.

    A topic pattern that ends in ``*`` stands for every topic that begins like it. ``name`` is what a second pair
    of eyes is told apart by: two callers with one name count as one.

    Example:
        >>> bot = Principal("key:bot", frozenset({READ, RUN}), ("orders", "test-*"))
        >>> bot.may(RUN), bot.may(APPROVE)
        (True, False)
        >>> bot.may_publish_to("test-1"), bot.may_publish_to("orders-2")
        (True, False)
    """

    name: str
    scopes: frozenset[str]
    topics: tuple[str, ...] | None = None

    def may(self, scope: str) -> bool:
        """Whether it holds ``scope``; ``backfills.admin`` holds every other one."""
        return scope in self.scopes or ADMIN in self.scopes

    def may_publish_to(self, topic: str) -> bool:
        """Whether backfills of its own may publish to the topic with this id."""
        if self.topics is None:
            return True
        return any(
            topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
            for pattern in self.topics
        )

    def require(self, scope: str) -> None:
        """Raise unless it holds ``scope``.

        Raises:
            ForbiddenError: it does not.
        """
        if not self.may(scope):
            raise ForbiddenError(
                f"This call needs the scope {scope}. {self.name} does not have this scope.", scope=scope
            )

    def require_any(self, *scopes: str) -> None:
        """Raise unless it holds one of ``scopes``, of which the last one is named.

        Raises:
            ForbiddenError: it holds none of them.
        """
        if not any(map(self.may, scopes)):
            self.require(scopes[-1])

    def require_topic(self, topic: str) -> None:
        """Raise unless it may publish to ``topic``.

        Raises:
            ForbiddenError: it may not.
        """
        if not self.may_publish_to(topic):
            raise ForbiddenError(f"{self.name} may not publish to the topic {topic}.", topic=topic)

    def may_read(self, topic: str | None) -> bool:
        """Whether it may read messages of the topic; of an unknown one (None) who has no topics may.

        The trap: where a query names the topic of its rows, who writes the query says which one it is.

        Example:
            >>> bot = Principal("key:bot", frozenset({MESSAGES}), ("orders",))
            >>> bot.may_read("orders"), bot.may_read("clicks"), bot.may_read(None)
            (True, False, False)
        """
        if not self.may(MESSAGES):
            return False
        return self.topics is None if topic is None else self.may_publish_to(topic)

    def require_reading(self, topic: str) -> None:
        """Raise unless it may read the topic's messages: a caller with topics reads those alone.

        Raises:
            ForbiddenError: it may not.
        """
        if not self.may_publish_to(topic):
            raise ForbiddenError(f"{self.name} may not read messages of the topic {topic}.", topic=topic)


@dataclass(frozen=True, slots=True)
class Grant:
    """Scopes for everybody whose token has ``value`` in its claim ``claim``."""

    claim: str
    value: str
    scopes: frozenset[str]


def parse_scopes(text: str) -> frozenset[str]:
    """Return the scopes that stand between commas.

    Raises:
        ValueError: one of them does not exist.
    """
    scopes = frozenset(scope.strip() for scope in text.split(","))
    if unknown := sorted(scopes - SCOPES.keys()):
        raise ValueError(f"no such scope: {', '.join(unknown)}; there are {', '.join(SCOPES)}")
    return scopes


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Return the grants of ``claim=value:scope,scope; claim=value:scope``.

    Raises:
        ValueError: it is not that, or a scope does not exist.

    Example:
        >>> parse_grants("email=ann@shop.example:backfills.admin")
        (Grant(claim='email', value='ann@shop.example', scopes=frozenset({'backfills.admin'})),)
    """
    grants = []
    for part in filter(None, map(str.strip, text.split(";"))):
        who, colon, listed = part.rpartition(":")
        claim, equals, value = who.partition("=")
        if not (colon and equals and claim.strip() and value.strip()):
            raise ValueError(f"{part!r} is not claim=value:scope,scope")
        scopes = parse_scopes(listed)
        grants.append(Grant(claim.strip(), value.strip(), scopes))
    return tuple(grants)


# Any caller of a service that has no key and no issuer, which is bound to loopback for that reason.
LOCAL: Final = Principal("local", frozenset(SCOPES))
