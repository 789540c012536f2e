"""How pages are rendered: templates, and how figures, times and states are written in them."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from model.errors import RequestRefusedError
from model.naming import render_duration

UNKNOWN: Final = Markup('<span class="unknown">unknown</span>')
# For the menu; any other zone of the IANA database may stand in the URL, and the browser's own is added there.
ZONES: Final = (
    *("UTC", "Europe/London", "Europe/Stockholm", "Europe/Berlin", "America/New_York", "America/Chicago"),
    *("America/Los_Angeles", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Singapore", "Asia/Tokyo"),
    "Australia/Sydney",
)
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_QUARTER: Final = 100 * _DAY
_KILO: Final = 1000.0
_TEN: Final = 10
_GOOD: Final = frozenset({"RUNNING", "SUCCEEDED", "complete", "done", "COMPLETED", "STABLE", "ACTIVE", "merged"})
_BAD: Final = frozenset({"FAILED", "NOT_REPORTING", "incomplete", "failed"})
_FEW_VALUES: Final = 5
# Fields of the API whose labels here are other words than their names.
_LABELS: Final = {"changed": "Keys", "newer": "Changed"}
_DATED: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_WAITS: Final = frozenset({"PAUSED", "PENDING", "STARTING", "WAITING", "UPDATING", "DRAINING", "CANCELLING"})
MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def parse_zone(name: str | None) -> ZoneInfo:
    """Return the zone with this name, UTC without one.

    Raises:
        RequestRefusedError: there is no such zone.
    """
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        shown = str(name)[:40]
        message = f"There is no time zone {shown!r}. Write it as UTC or Europe/Stockholm."
        raise RequestRefusedError(message, detail=message, status=422, code="zone_unknown") from None


def render_number(value: float | None) -> str | Markup:
    """Return a count or a rate; one that nobody knows is never 0.

    Example:
        >>> render_number(12345), render_number(0.25), str(render_number(None))
        ('12,345', '0.25', '<span class="unknown">unknown</span>')
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= _TEN else f"{value:.2g}"


def render_bytes(value: float | None) -> str | Markup:
    """Return a size.

    Example:
        >>> render_bytes(310_000_000)
        '310 MB'
    """
    if value is None:
        return UNKNOWN
    size, unit = float(value), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if size < _KILO:
            break
        size, unit = size / _KILO, larger
    return f"{size:,.0f} {unit}" if size >= _TEN or unit == "B" else f"{size:.1f} {unit}"


def render_seconds(value: float | None) -> str | Markup:
    """Return a duration."""
    return UNKNOWN if value is None else render_duration(value)


def parse_time(value: str | datetime) -> datetime:
    """Return the aware time of an RFC 3339 text of the API; a time is returned as it is."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def find_time(text: str | None, zone: tzinfo = UTC) -> datetime | None:
    """Return the aware time of a text in an address, None of what is none; without an offset it is of ``zone``.

    The first and the last year count as none: in another zone, or a step later, such a time would not exist.

    Example:
        >>> find_time("2026-01-01"), find_time("9999-12-31"), find_time("yesterday")
        (datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None, None)
    """
    try:
        found = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    if not MINYEAR < found.year < MAXYEAR:
        return None
    return found if found.tzinfo else found.replace(tzinfo=zone)


def show_time(value: str | datetime | None, zone: tzinfo) -> Markup:
    """Return a time with its offset in the page's zone; it is copied as UTC (assets/console.js).

    Example:
        >>> print(show_time("2026-01-03T03:00:00Z", UTC))
        <time datetime="2026-01-03T03:00:00Z">2026-01-03 03:00:00 +00:00</time>
    """
    if value is None:
        return UNKNOWN
    moment = parse_time(value)
    return Markup('<time datetime="{}">{}</time>').format(render_utc(moment), plain_time(moment, zone))


def show_age(value: str | datetime | None, zone: tzinfo, now: datetime) -> Markup:
    """Return how long ago a time was, or in how long it is; its title is the exact time, and so is an old one.

    Example:
        >>> now = datetime(2026, 1, 3, 4, 5, tzinfo=UTC)
        >>> print(show_age("2026-01-03T03:00:00Z", UTC, now))
        <time datetime="2026-01-03T03:00:00Z" title="2026-01-03 03:00:00 +00:00">1 h 5 min ago</time>
    """
    if value is None:
        return UNKNOWN
    moment = parse_time(value)
    written = Markup('<time datetime="{}" title="{}">{}</time>')
    age = say_age((now - moment).total_seconds()) or f"{moment.astimezone(zone):%Y-%m-%d}"
    return written.format(render_utc(moment), plain_time(moment, zone), age)


def say_age(seconds: float) -> str:
    """Return an age in words, of a time to come a negative one; nothing of what is more than a quarter away.

    Example:
        >>> say_age(20), say_age(150), say_age(-7500), say_age(200000), say_age(-20), say_age(9e6)
        ('just now', '2 min ago', 'in 2 h 5 min', '2 d ago', 'in less than 1 min', '')
    """
    size = int(abs(seconds))
    if size < _MINUTE:
        return "just now" if seconds >= 0 else "in less than 1 min"
    if size > _QUARTER:
        return ""
    if size < _HOUR:
        said = f"{size // _MINUTE} min"
    else:
        said = f"{size // _DAY} d" if size >= _DAY else f"{size // _HOUR} h {size % _HOUR // _MINUTE} min"
    return f"{said} ago" if seconds >= 0 else f"in {said}"


def plain_time(value: str | datetime, zone: tzinfo) -> str:
    """Return a time with its offset in the page's zone, as text."""
    moment = parse_time(value).astimezone(zone)
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.isoformat()[-6:]}"


def render_utc(moment: datetime) -> str:
    """Return a time as the API has it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def render_badge(state: str | None) -> Markup:
    """Return a state as a badge, whose words say what its colour says."""
    if state is None:
        return UNKNOWN
    tone = "good" if state in _GOOD else "bad" if state in _BAD else "waits" if state in _WAITS else "over"
    return Markup('<span class="badge {}">{}</span>').format(tone, state.replace("_", " "))


def render_share(part: float | None, whole: float | None) -> Markup:
    """Return how much of a whole is done as a bar; without a whole there is nothing to show."""
    if part is None or not whole:
        return UNKNOWN
    percent = max(0.0, min(100.0, 100.0 * part / whole))
    return Markup(
        '<span class="share">'
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{0:.0f} percent">'
        '<rect class="track" width="100" height="8"/><rect class="fill" width="{0:.2f}" height="8"/></svg>'
        '<span class="percent">{0:.0f} %</span></span>'
    ).format(percent)


def render_value(value: Any, zone: tzinfo) -> str | Markup:
    """Return a field of the API whose name the page does not know, by its type; of a long list the beginning.

    Example:
        >>> str(render_value([True, None, 1200], UTC)), str(render_value([0, 1, 2, 3, 4, 5, 6], UTC))
        ('yes, -, 1,200', '0, 1, 2, 3, 4 and 2 more')
    """
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return render_number(value)
    if isinstance(value, Mapping):
        return Markup(", ").join(
            Markup("{}: {}").format(name_field(name), render_value(each, zone)) for name, each in value.items()
        )
    if isinstance(value, list):
        more = f" and {len(value) - _FEW_VALUES:,} more" if len(value) > _FEW_VALUES else ""
        return Markup(", ").join(render_value(each, zone) for each in value[:_FEW_VALUES]) + more
    text = str(value)
    return show_time(text, zone) if _DATED.fullmatch(text) else text


def name_field(name: str) -> str:
    """Return the name of a field of the API as a label; what has a dot is the name of a table, and stays.

    Example:
        >>> name_field("rows_before"), name_field("staging.hooks_push")
        ('Rows before', 'staging.hooks_push')
    """
    return name if "." in name else _LABELS.get(name) or name.replace("_", " ").capitalize()


def make_url(path: str, zone: ZoneInfo, **params: Any) -> str:
    """Return an address of the console that keeps the page's zone.

    Example:
        >>> make_url("/streams", ZoneInfo("Asia/Tokyo"), state=None)
        '/console/streams?zone=Asia%2FTokyo'
    """
    wanted = {name: str(value) for name, value in params.items() if value not in (None, "")}
    if zone.key != "UTC":
        wanted["zone"] = zone.key
    return f"/console{path}" + (f"?{urlencode(wanted)}" if wanted else "")


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return a page, or the part of one."""
    return _environment().get_template(template).render(**context)


@cache
def read_asset(name: str) -> bytes | None:
    """Return one of the console's own files, None when there is none of that name."""
    if name not in {each.name for each in files("console").joinpath("assets").iterdir()}:
        return None
    return files("console").joinpath("assets", name).read_bytes()


@cache
def asset_url(name: str) -> str:
    """Return where a file is; the address changes with its content."""
    return f"/console/assets/{name}?v={hashlib.sha256(read_asset(name) or b'').hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    # Nothing is Markup but what this module and the templates write: every value of the API is escaped.
    environment = Environment(
        loader=PackageLoader("console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=render_number,
        size=render_bytes,
        seconds=render_seconds,
        badge=render_badge,
        field_name=name_field,
        value=_in_page(render_value),
        time=_age_in_page,
        exact=_in_page(show_time),
        plain_time=_in_page(plain_time),
        # As a form takes it.
        zoned=_in_page(lambda value, zone: parse_time(value).astimezone(zone).isoformat()),
    )
    environment.globals.update(
        share=render_share, asset=asset_url, url=_url_in_page, link=_link_in_page, zones=ZONES, UNKNOWN=UNKNOWN
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["base64"] = lambda text: b64encode(text.encode()).decode()
    environment.filters["or_unknown"] = lambda value: UNKNOWN if value is None else escape(value)
    return environment


def _in_page(render_in: Callable[[Any, tzinfo], str]) -> Callable[[Context, Any], str]:
    """Return a filter that renders a value in the page's zone."""

    @pass_context
    def render_in_page(context: Context, value: Any) -> str:
        return render_in(value, context["visit"].zone)

    return render_in_page


@pass_context
def _age_in_page(context: Context, value: str | datetime | None) -> Markup:
    """Return an age; on a page that is not kept up to date, where it would soon be wrong, the time itself."""
    if getattr(context.get("page"), "every_seconds", None) is None:
        return show_time(value, context["visit"].zone)
    return show_age(value, context["visit"].zone, datetime.now(UTC))


@pass_context
def _url_in_page(context: Context, path: str, **params: Any) -> str:
    """Return an address; a page without a visit has no zone to keep."""
    return make_url(path, context["visit"].zone if "visit" in context else parse_zone(None), **params)


@pass_context
def _link_in_page(context: Context, path: str) -> str:
    """Return the address of a path that may have a query of its own."""
    place, _, query = path.partition("?")
    return make_url(place, context["visit"].zone, **dict(parse_qsl(query)))
