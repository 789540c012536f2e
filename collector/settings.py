"""A collector's settings: its topics, callers and limits, from a YAML file, every fault reported together."""

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from collector.event import FACTS
from connectors.gcp_kms.decrypt import decrypt
from connectors.sns.names import sns_host
from model.errors import InvalidNameError, SettingsError
from model.message import MAX_ATTRIBUTE_VALUE_BYTES, is_resource_id, matches, parse_resource_id
from model.plain_yaml import YamlDocument, YamlFaultsError, read_yaml
from model.secret import read_secret
from model.variables import is_loopback_name

# Paths of the collector itself: a topic of that name could not be reached.
ROUTES: Final = ("healthz", "readyz", "metrics", "openapi.json", "sns")
_MIN_SECRET_CHARS: Final = 16
_PATTERN = re.compile(r"[A-Za-z*][A-Za-z0-9\-_.~+%*]{0,254}")
_MEBIBYTE: Final = 1024 * 1024


def read_own_secret(reference: str) -> str:
    """Return the secret that a reference leads to, as :func:`model.secret.read_secret` has them.

    Raises:
        ValueError: it is no reference, or leads to nothing, or to less than 16 characters.
    """
    secret = read_secret(reference, os.environ, decrypt)
    if len(secret) < _MIN_SECRET_CHARS:
        raise ValueError(f"{reference} has fewer than {_MIN_SECRET_CHARS} characters")
    return secret


def _pattern(text: str) -> str:
    """Return a topic's name, or a pattern with ``*``.

    Raises:
        ValueError: it is neither, or is one of the collector's own paths.
    """
    if text in ROUTES:
        raise ValueError(f"{text} is a path of the collector itself")
    if "*" in text and _PATTERN.fullmatch(text):
        return text
    try:
        return parse_resource_id(text)
    except InvalidNameError as exc:
        raise ValueError(exc.message) from exc


def _name(text: str) -> str:
    if "*" in text:
        raise ValueError("must be a topic's name, not a pattern")
    return _pattern(text)


def _topic_arn(text: str) -> str:
    sns_host(text)
    return text


def _origin(text: str) -> str:
    parts = urlsplit(text)
    is_origin = parts.scheme in ("http", "https") and parts.netloc and text == f"{parts.scheme}://{parts.netloc}"
    if text != "*" and not is_origin:
        raise ValueError("must be an origin such as https://shop.example, or *")
    return text.lower()


Secret = Annotated[str, AfterValidator(read_own_secret)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Origin = Annotated[str, AfterValidator(_origin)]
TopicName = Annotated[str, AfterValidator(_name)]
TopicArn = Annotated[str, AfterValidator(_topic_arn)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class KeySection(_Section):
    """A caller's key, and the topics to which the caller may send events."""

    name: str = Field(min_length=1, max_length=100, description="The caller's name.")
    secret: Secret = Field(repr=False, description="A reference to the secret key.")
    topics: tuple[Pattern, ...] | None = Field(
        default=None,
        description="Topics, or patterns of topics, to which the caller may send events. Null means all topics.",
    )


class SignatureSection(_Section):
    """The signature of a webhook's sender: an HMAC of the body in a header.

    ``github`` is ``X-Hub-Signature-256: sha256=<hex>``
    (https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries); ``generic`` is told by the
    other fields.
    """

    kind: Literal["github", "generic"] = Field(
        description="`github`: the signature of GitHub's webhooks. `generic`: the other fields describe the "
        "signature."
    )
    secret: Secret = Field(repr=False, description="A reference to the secret with which the sender signs.")
    header: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9\-]{0,100}$",
        description="Only with generic: the name of the header with the signature.",
    )
    algorithm: Literal["sha1", "sha256", "sha512"] = Field(
        default="sha256", description="Only with generic: the hash function of the HMAC."
    )
    encoding: Literal["hex", "base64"] = Field(
        default="hex", description="Only with generic: the encoding of the HMAC in the header."
    )
    prefix: str = Field(
        default="",
        max_length=100,
        description="Only with generic: the text before the HMAC in the header, such as sha256=.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "generic") != bool(self.header):
            raise ValueError(
                "the kind generic needs the field header; the kind github allows only the field secret"
            )
        return self


class LimitSection(_Section):
    """The maximum number of requests in a minute, for each key and for each address. 0 means no limit."""

    key_per_minute: int = Field(
        default=0, ge=0, le=10_000_000, description="The maximum number of requests in a minute with one key."
    )
    address_per_minute: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="The maximum number of requests in a minute from one address. An IPv6 network /64 counts "
        "as one address.",
    )


class TopicSection(_Section):
    """The settings of one topic, or of all topics that match a pattern."""

    format: Literal["json", "raw"] = Field(
        default="json", description="`json`: the body must be strict JSON. `raw`: any body is one event."
    )
    arrays: Literal["batch", "event"] = Field(
        default="batch",
        description="`batch`: each element of a JSON array is an event. `event`: the whole array is one event.",
    )
    source: str = Field(
        default="http",
        min_length=1,
        max_length=MAX_ATTRIBUTE_VALUE_BYTES // 4,
        description="The value of the attribute 'source' of each published message.",
    )
    public: bool = Field(default=False, description="Whether anybody may send events without a key.")
    cors: tuple[Origin, ...] = Field(
        default=(),
        description="The origins of web pages that may send events (CORS). If the list is not empty, the "
        "collector refuses pages of other origins.",
    )
    signature: SignatureSection | None = Field(
        default=None, description="The signature that every request must have. Callers then need no key."
    )


class SnsTopicSection(_Section):
    """One SNS topic, and the Pub/Sub topics to which its notifications are published.

    With a password every request about the SNS topic must carry the Basic credentials; raw delivery needs them.
    """

    topics: tuple[TopicName, ...] = Field(
        min_length=1, description="The Pub/Sub topics to which notifications may be published."
    )
    source: str = Field(
        default="sns",
        min_length=1,
        max_length=MAX_ATTRIBUTE_VALUE_BYTES // 4,
        description="The value of the attribute 'source' of each published message.",
    )
    username: str = Field(
        default="",
        max_length=100,
        pattern=r"^[^:]*$",
        description="The user name that SNS sends with HTTP Basic authentication.",
    )
    password: Secret | None = Field(
        default=None,
        repr=False,
        description="A reference to the password that SNS sends with HTTP Basic authentication. Raw message "
        "delivery needs the password.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password belong together. Set both or neither")
        return self


class SnsSection(_Section):
    """Amazon SNS topics. The collector accepts only notifications from these SNS topics.

    SNS tries for an hour to deliver; what is older than ``max_age_seconds`` somebody kept and sends again.
    """

    topics: dict[TopicArn, SnsTopicSection] = Field(
        default_factory=dict, description="The SNS topics by their ARN."
    )
    max_age_seconds: int = Field(
        default=7200,
        ge=3600,
        le=604_800,
        description="The collector refuses notifications that are older than this number of seconds. SNS "
        "itself retries for one hour.",
    )

    @cached_property
    def pubsub_topics(self) -> frozenset[str]:
        """The Pub/Sub topics that any SNS topic may send to."""
        return frozenset(name for each in self.topics.values() for name in each.topics)


class CollectorFile(_Section):
    """The settings file of a collector."""

    topics: dict[Pattern, TopicSection] = Field(
        default_factory=dict,
        description="Settings by topic or pattern. A topic's own section has priority over patterns. "
        "Otherwise, the first pattern that matches the topic applies.",
    )
    keys: tuple[KeySection, ...] = Field(default=(), description="The keys of callers.")
    facts: tuple[Literal["path", "query", "user_agent", "referer", "client_address"], ...] = Field(
        default=FACTS,
        description="The facts about a request that the collector adds to the message as attributes.",
    )
    proxies: int = Field(
        default=0,
        ge=0,
        le=10,
        description="The number of trusted proxies in front of the collector. Each proxy must add one entry to "
        "X-Forwarded-For.",
    )
    rate_limits: LimitSection = Field(
        default=LimitSection(), description="The maximum number of requests in a minute."
    )
    sns: SnsSection = Field(default=SnsSection(), description="Amazon SNS topics.")
    max_body_bytes: int = Field(
        default=10_000_000, ge=1024, le=100_000_000, description="The maximum size of a request's body, in bytes."
    )
    max_connections: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="The maximum number of connections at the same time. The collector answers further "
        "connections with status 503 and closes them.",
    )
    publish_timeout_seconds: float = Field(
        default=10.0,
        ge=0.1,
        le=600,
        description="How long the collector waits for Pub/Sub before it answers with an error, in seconds.",
    )


class CollectorSettings(CollectorFile):
    """A collector's settings: those of its file, and the allow-list of topics and patterns.

    ``held_bytes`` is how much all requests together may hold in memory. With ``allow_unread`` events are taken for
    topics that nothing subscribes to, and Pub/Sub keeps them for nobody.
    """

    allowed: tuple[str, ...]
    allow_unread: bool = False
    body_timeout_seconds: float = 10.0
    held_bytes: int = 256 * _MEBIBYTE

    @property
    def exact_topics(self) -> tuple[str, ...]:
        """The topics that are listed by name."""
        return tuple(topic for topic in self.allowed if "*" not in topic)

    def section(self, topic: str) -> TopicSection | None:
        """Return how events of ``topic`` are taken, None when it is not on the list.

        A topic's own section wins over a pattern's; of patterns the first that fits. No pattern lets in what
        Pub/Sub takes for no topic's name.
        """
        if not matches(self.allowed, topic) or not is_resource_id(topic):
            return None
        return self._find_section(topic) or TopicSection()

    def _find_section(self, topic: str) -> TopicSection | None:
        if (own := self.topics.get(topic)) is not None:
            return own
        return next((each for name, each in self.topics.items() if matches([name], topic)), None)

    def check_host(self, host: str) -> None:
        """Raise when anybody who reaches ``host`` could send events that nobody meant to be public.

        Raises:
            SettingsError: the host is not loopback, there is no key, and a topic is not public.
        """
        if is_loopback_name(host) or self.keys:
            return
        closed = [name for name in self.allowed if not self._is_public(name)]
        if closed:
            raise SettingsError(
                f"With --host {host}, everybody who can reach this machine could send events to "
                f"{', '.join(closed)}. Give the collector keys in its settings file, or give each of "
                "these topics 'public: true' or a signature."
            )

    def _is_public(self, name: str) -> bool:
        if any(matches([name], topic) for topic in self.sns.pubsub_topics):
            # SNS signs what it sends; without a key nobody else can send to the topic.
            return True
        found = self._find_section(name)
        return found is not None and (found.public or found.signature is not None)


def read_collector_settings(
    topics: Sequence[str],
    path: Path | None,
    *,
    body_timeout_seconds: float = 10.0,
    allow_unread: bool = False,
) -> CollectorSettings:
    """Return the settings in the file at ``path`` for the topics of the allow-list.

    Raises:
        SettingsError: the file can't be read, or anything in it or in ``topics`` is wrong; all faults are named.
    """
    faults = _topic_faults(topics)
    found = CollectorFile()
    if path is not None:
        document = _read_file(path)
        content = {} if document.value is None else document.value
        try:
            found = CollectorFile.model_validate(content)
        except ValidationError as exc:
            faults += [_render(error, document) for error in exc.errors(include_input=False)]
        faults += _unlisted(content, topics, document)
        faults += [
            f"sns.topics: {name} is not in REFEED_COLLECTOR_TOPICS"
            for name in sorted(found.sns.pubsub_topics)
            if not matches(topics, name)
        ]
    if len({key.name for key in found.keys}) < len(found.keys):
        faults.append("keys: two have the same name")
    if len({key.secret for key in found.keys}) < len(found.keys):
        faults.append("keys: two have the same secret")
    if faults:
        raise SettingsError(f"Wrong collector settings: {'; '.join(faults)}", faults=faults)
    return CollectorSettings(
        **vars(found),
        allowed=tuple(topics),
        allow_unread=allow_unread,
        body_timeout_seconds=body_timeout_seconds,
    )


def _topic_faults(topics: Sequence[str]) -> list[str]:
    if not topics:
        what = "It lists the topics to which callers may send events. 'refeed collector' also has --topics"
        return [f"REFEED_COLLECTOR_TOPICS is missing. {what}"]
    faults: list[str] = []
    for name in topics:
        try:
            _pattern(name)
        except ValueError as exc:
            faults.append(f"REFEED_COLLECTOR_TOPICS: {exc}")
    return faults


def _unlisted(content: Any, topics: Sequence[str], document: YamlDocument) -> list[str]:
    """Return a fault for each topic of the file that nobody may send events to."""
    sections = content.get("topics") if isinstance(content, dict) else None
    names = [name for name in sections if isinstance(name, str)] if isinstance(sections, dict) else []
    return [
        f"topics.{name}: is not in REFEED_COLLECTOR_TOPICS{_placed(document, ['topics', name])}"
        for name in names
        if name not in topics and ("*" in name or not matches(topics, name))
    ]


def _read_file(path: Path) -> YamlDocument:
    try:
        return read_yaml(path.read_bytes())
    except (OSError, YamlFaultsError) as exc:
        raise SettingsError(f"Wrong collector settings: {path}: {exc}") from exc


def _render(error: Any, document: YamlDocument) -> str:
    where = [part for part in error["loc"] if part != "[key]"]
    named = ".".join(map(str, where)) or "the file"
    return f"{named}: {error['msg'].removeprefix('Value error, ')}{_placed(document, where)}"


def _placed(document: YamlDocument, path: Sequence[str | int]) -> str:
    line, column = document.place(path)
    return f" (line {line}, column {column})"
