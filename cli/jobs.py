"""The kinds of jobs as commands list and follow them, and what all jobs share in the terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from backfill.plan.request import BackfillRequest
from cli.backfill_view import backfill_lines, whole_backfill_lines
from cli.backfill_watch import watch_live
from cli.moments import render_count, render_minute
from cli.objects import Act, ObjectKind
from cli.terminal import (
    WHOLE,
    Columns,
    Output,
    err,
    print_as,
    print_found,
    print_json,
    printable,
    render_fault,
    render_leaving,
    render_table,
    row_length,
    tabulate,
)
from model.declaration import declared_fields, json_name
from model.errors import RefeedError
from model.job import JobState
from model.naming import counted
from reporting.request import MergeCreate

if TYPE_CHECKING:
    from client.api import RefeedApi
    from client.jobs import KindCalls

_PENDING: Final = "-"
_CREATED: Final[Columns] = {"by": "created_by", "created": lambda job: render_minute(job["created_at"])}
_WIDE: Final[Columns] = {
    "ended": lambda job: render_minute(job["finished_at"]) if job.get("finished_at") else _PENDING,
    "error": lambda job: (job.get("error") or {}).get("code", ""),
    "description": "description",
}
JOB_FILTERS: Final = ("state", "since", "created_by", "id_prefix", "order_by", "page_size", "page_token")


def fetch_jobs(kind: str, plural: str) -> "Callable[[RefeedApi, Mapping[str, Any]], Mapping[str, Any]]":
    """Return what lists the jobs of a kind, as a page whose key is ``plural``."""

    def fetch(api: "RefeedApi", wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        page = dict(_any_fetch(api, {**wanted, "kind": kind}))
        return {plural: page.pop("jobs"), **page}

    return fetch


def job_kind(
    name: str,
    prefix: str,
    *,
    filters: Sequence[str] = (),
    acts: Sequence[str] = (),
    rerun: Act | None = None,
    **more: Any,
) -> ObjectKind:
    """Return a kind of jobs, which are listed, read and steered as those of every kind; ``more`` are its own."""
    plural = f"{name}s"
    return ObjectKind(
        name=name,
        plural=plural,
        prefix=prefix,
        fetch=fetch_jobs(name, plural),
        filters=(*filters, *JOB_FILTERS),
        read=lambda api, job_id: api.jobs.read(job_id),
        acts={verb: act_on_job(verb) for verb in acts} | ({} if rerun is None else {"rerun": rerun}),
        **more,
    )


def act_on_job(verb: str) -> Act:
    """Return what sends a verb to a job."""
    return lambda api, job_id, body: api.jobs.act(job_id, verb, body)


def _names_of(declaration: type) -> list[str]:
    """Return the fields of a request that another job may have too."""
    return [json_name(each.name) for each in declared_fields(declaration) if each.name != "plan_id"]


def _rerun(names: Sequence[str], kind: "Callable[[RefeedApi], KindCalls]") -> Act:
    """Return what creates a job with these fields of an ended one, which it gets as its body."""

    def create(api: "RefeedApi", _: str, ended: Mapping[str, Any] | None) -> dict[str, Any]:
        assert ended is not None
        request = {name: ended[name] for name in names if ended.get(name) is not None}
        if ended.get("canary") is not None:
            # A backfill that went on after its canary has none any more.
            request["canary_messages"] = ended["canary"]["messages"]
        return kind(api).create(request, idempotency_key=str(uuid4()))

    return create


def job_table(plural: str, columns: Columns) -> Callable[[Mapping[str, Any]], list[str]]:
    """Return what renders the jobs called ``plural`` of a page as a table; a wide one has more columns."""

    def render(page: Mapping[str, Any]) -> list[str]:
        wide = _WIDE if row_length.get() == WHOLE else {}
        return tabulate({"id": "id", "state": "state", **columns, **_CREATED, **wide}, page[plural])

    return render


def _published(backfill: Mapping[str, Any]) -> str:
    progress, approval = backfill.get("progress") or {}, backfill.get("approval") or {}
    # Before the query has run, a plan may have counted the rows.
    selected = approval.get("rows") if progress.get("selected") is None else progress["selected"]
    return f"{progress.get('published') or 0:,} / {render_count(selected)}"


def merge_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show a merge."""
    dry = ", a dry run" if found["dry_run"] else ""
    yield f"{found['id']}  {found['state']}{dry}"
    columns: Columns = {
        "source": "source",
        "state": lambda each: _source_state(found, each),
        "keys read": "changed",
        "keys changed": "newer",
        "partitions": lambda each: str(len(each["partitions"])),
    }
    yield from tabulate(columns, found["sources"])
    for each in found["sources"]:
        # A merge of an earlier Refeed did not count them.
        if each.get("without_key"):
            yield f"  {render_without_key(each['source'], each['without_key'])}"
        if each["error"]:
            yield f"  {each['source']}  {render_fault(each['error'])}"
    if found["error"] and not any(each["error"] for each in found["sources"]):
        yield f"  {render_fault(found['error'])}"
    yield from _nothing_lines(found)


def _source_state(found: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    return "not merged: a dry run" if found["dry_run"] and source["state"] == "merged" else str(source["state"])


def _nothing_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a merge read no rows, if an earlier merge had read them."""
    begin = _first_since(found)
    if found["state"] != "SUCCEEDED" or found["progress"]["changed"] or found["since"] or begin is None:
        return
    # What that merge read was staged on the day before, or since.
    day = (begin - timedelta(days=1)).date()
    at = f"{begin:%Y-%m-%d %H:%M}"
    yield f"  There are no rows since the last merge of {at}, so the merge read none."
    yield f"  To read merged rows again: {_read_again(found, day)}"


def reread_lines(ended: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a merge with the request of ``ended`` leaves out, and the command that reads it again."""
    if ended["state"] == "SUCCEEDED" and not ended["since"]:
        # The first merge of a source reads from the beginning; its rows were staged on the day before, or since.
        begin = _first_since(ended) or datetime.fromisoformat(ended["created_at"]) - timedelta(days=1)
        yield f"The new merge reads only rows that are not merged yet. To read those of {ended['id']} again:"
        yield f"  {_read_again(ended, begin.date())}"


def _first_since(found: Mapping[str, Any]) -> datetime | None:
    """Return the earliest moment from which a merge read its sources; None if it is unknown, or one was new."""
    times = [each.get("since") for each in found["sources"]]
    return None if not times or None in times else min(map(datetime.fromisoformat, times))


def _read_again(found: Mapping[str, Any], day: date) -> str:
    source = f"--source {found['source']} " if found["source"] else ""
    return f"refeed merge create {source}--date {day} --watch"


def render_without_key(source: str, count: int) -> str:
    """Return what is said of a source's rows that have no key."""
    return f"{source}: {count:,} without a key; each is a separate row in reporting"


def _merge_progress(found: Mapping[str, Any]) -> str:
    return f"{found['progress']['merged']} of {found['progress']['sources']} sources"


def _compaction_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']}  {found['state']}"
    rows = [[table, str(found["files_removed"].get(table, _PENDING))] for table in found["tables"]]
    yield from render_table(["table", "files fewer"], rows)
    if found["error"]:
        yield f"  {render_fault(found['error'])}"


def _compaction_progress(found: Mapping[str, Any]) -> str:
    return f"{len(found['files_removed'])} of {len(found['tables'])} tables"


def next_of(**commands: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what names the next command of a job by its state; until a state of ``commands`` it is watched."""
    return lambda found: commands.get(found["state"], "refeed watch {id}").format_map(found)


def _has_arrived(backfill: Mapping[str, Any]) -> bool:
    """Whether a backfill ended well: no message is missing in staging as far as anybody can know that.

    What somebody reverted is meant to be missing. While the service has not counted, it is not known yet.
    """
    verification = (backfill.get("verification") or {}).get("state")
    is_doubtful = verification in {"incomplete", "pending"} and not backfill.get("revert")
    return backfill["state"] == JobState.SUCCEEDED and not is_doubtful


_NEXT: Final = next_of(SUCCEEDED="refeed logs {id}", **dict.fromkeys(("FAILED", "CANCELLED"), "refeed retry {id}"))


def _watch_merge(api: "RefeedApi", found: dict[str, Any]) -> dict[str, Any]:
    """Return the merge once it has ended, and print which pipelines had messages left that it could not read."""
    found = watch_job(api, found, _merge_progress)
    if found["state"] == JobState.SUCCEEDED:
        # Who may not see streams gets no hint.
        with suppress(RefeedError):
            for line in map(_render_waiting, api.list_streams()["streams"]):
                if line is not None:
                    err.print(f"{line} The merge read only rows that are in staging.")
    return found


def _render_waiting(stream: Mapping[str, Any]) -> str | None:
    if stream["kind"] != "pipeline":
        return None
    if stream["backlog_messages"]:
        return f"{stream['name']} has {counted(stream['backlog_messages'], 'pending message')}."
    is_starting = stream["state"] == "STARTING"
    return f"{stream['name']} is STARTING." if is_starting else None


def _next_of_merge(found: Mapping[str, Any]) -> str:
    """Return the command to run next: a retry uses the rules that the merge began with, which may not fit."""
    for each in found.get("sources", ()):
        if found["state"] == JobState.FAILED and (each["error"] or {}).get("code") == "rules_unfit":
            return f"refeed describe source/{each['source']}"
    return _NEXT(found)


BACKFILL: Final = job_kind(
    "backfill",
    "bf",
    filters=("topic", "label"),
    table=job_table("backfills", {"topic": "topic", "published / selected": _published}),
    lines=backfill_lines,
    whole_lines=whole_backfill_lines,
    acts=("pause", "resume", "cancel", "retry", "approve", "revert"),
    rerun=_rerun(_names_of(BackfillRequest), lambda api: api.backfills),
    verbs=("logs", "figures", "set", "missing", "dead-letters"),
    follow=lambda api, found: watch_live(api, found["id"]),
    succeeded=_has_arrived,
)
MERGE: Final = job_kind(
    "merge",
    "mg",
    table=job_table(
        "merges",
        {
            "source": lambda job: job["source"] or "all",
            "merged / sources": lambda job: f"{job['progress']['merged']} / {job['progress']['sources']}",
        },
    ),
    lines=merge_lines,
    next=_next_of_merge,
    acts=("cancel", "retry"),
    rerun=_rerun(_names_of(MergeCreate), lambda api: api.merges),
    verbs=("logs",),
    follow=_watch_merge,
)
COMPACTION: Final = job_kind(
    "compaction",
    "cp",
    table=job_table(
        "compactions",
        {
            "compacted / tables": lambda job: f"{len(job['files_removed'])} / {len(job['tables'])}",
            "files fewer": lambda job: f"{sum(job['files_removed'].values()):,}",
        },
    ),
    lines=_compaction_lines,
    next=_NEXT,
    acts=("cancel", "retry"),
    rerun=_rerun(["tables"], lambda api: api.compactions),
    verbs=("logs",),
    follow=lambda api, found: watch_job(api, found, _compaction_progress),
)


def _any_fetch(api: "RefeedApi", wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    return api.jobs.list(**{"page_size": 50, **wanted})


JOB: Final = ObjectKind(
    name="job",
    plural="jobs",
    fetch=_any_fetch,
    filters=("kind", "topic", "label", "stream", *JOB_FILTERS),
    table=job_table("jobs", {"kind": "kind"}),
)


def print_log(texts: Iterable[str], *, as_json: bool) -> None:
    """Print a log as it comes or, when it has ended, as one list of lines."""
    if as_json:
        print_json({"lines": "".join(texts).splitlines()})
        return
    for text in texts:
        sys.stdout.write(printable(text))
        sys.stdout.flush()


def print_page(
    page: Mapping[str, Any],
    table: Callable[[Mapping[str, Any]], Iterable[str]],
    *,
    as_json: bool,
    since: str | None = None,
    output: Output | None = None,
    names: Iterable[str] = (),
) -> None:
    """Show a page as a table and, on stderr, how to ask for the next page; or in a form for programs.

    ``names`` are those of its objects. A token is good for one list only: an age such as ``2h`` would be another
    time by then, so ``since`` is named.
    """
    if as_json or output not in {None, Output.WIDE}:
        print_as(Output.JSON if as_json or output is None else output, page, names)
        return
    print_found(page, table, as_json=False)
    if page.get("unreadable"):
        err.print(f"not shown, because another release wrote them: {', '.join(page['unreadable'])}")
    if page.get("next_page_token"):
        again = "" if since is None else f"--since {since} "
        err.print(f"more: {again}--page-token {page['next_page_token']}")


def watch_job(
    api: "RefeedApi",
    found: dict[str, Any],
    progress: Callable[[Mapping[str, Any]], str],
    *,
    waits_for_person: Callable[[Mapping[str, Any]], bool] = lambda _: False,
) -> dict[str, Any]:
    """Return the job once it has ended, or waits for a person, and show it on stderr meanwhile.

    Ctrl-C ends the watching alone. ``progress`` returns its progress for a line.
    """
    job_id, said = found["id"], ""
    err.print(f"watching {job_id}; Ctrl-C does not cancel it")
    try:
        # Elsewhere than in a terminal a status shows nothing.
        with err.status("") as line:
            for seen in api.jobs.watch(job_id):
                found = seen
                text = f"{seen['state']} {progress(seen)}"
                line.update(f"{job_id} {text}")
                if text != said and not err.is_terminal:
                    err.print(text)
                said = text
                if waits_for_person(seen):
                    break
    except KeyboardInterrupt:
        if not JobState(found["state"]).is_final:
            err.print(render_leaving(job_id))
        raise
    return found
