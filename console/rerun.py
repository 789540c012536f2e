"""Running an ended job again, as it was or with changes: the form of its kind, filled with its request."""

from collections.abc import Mapping
from typing import Any, Final

from console.forms import FormField, key_field, read_key
from console.new_backfill import describe_new_backfill, launch_backfill
from console.visit import Visit

_SINCE_HELP: Final = (
    "Merge again all rows that were staged since this time. If the field is empty, the merge of each source "
    "begins where its last merge stopped."
)


def show_rerun(visit: Visit, job: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the form of a backfill like ``job``; of other kinds there are :func:`rerun_fields`."""
    if job["kind"] != "backfill":
        return {}
    again = {**job, "canary_messages": (job["canary"] or {}).get("messages")}
    return {"template": "new_backfill.html", "extra": describe_new_backfill(visit, given, again=again)}


def rerun_fields(job: Mapping[str, Any], given: Mapping[str, str]) -> tuple[FormField, ...]:
    """Return the fields of a merge or a compaction like ``job``."""
    if job["kind"] == "compaction":
        tables = given.get("tables", " ".join(job["tables"]))
        return (
            FormField("tables", "Tables", value=tables, help="archive or dataset.table, separated by spaces."),
            key_field(given),
        )
    if job["kind"] != "merge":
        return ()
    before = {name: job[name] or "" for name in ("source", "since")} | {"dry_run": "yes" if job["dry_run"] else ""}
    # A box that is not ticked is not sent.
    form = {**before, **({"dry_run": ""} if "key" in given else {}), **given}
    return (
        FormField("source", "Source", value=form["source"], help="Leave the field empty to merge all sources."),
        FormField("since", "Since", value=form["since"], help=_SINCE_HELP),
        FormField("dry_run", "Only show the result, and change nothing", kind="checkbox", value=form["dry_run"]),
        key_field(given),
    )


def rerun(visit: Visit, fields: Mapping[str, str]) -> str:
    """Create the job that the form describes, and return its path.

    Raises:
        RequestRefusedError: the API refuses it, or a field is none of what it should be.
    """
    if visit.path_params["id"].startswith("bf_"):
        return launch_backfill(visit, fields)
    key = read_key(fields)
    if visit.path_params["id"].startswith("cp_"):
        wanted = {"tables": fields.get("tables", "").split()}
        return f"/jobs/{visit.api.compactions.create(wanted, idempotency_key=key)['id']}"
    texts = {name: fields.get(name, "").strip() for name in ("source", "since")}
    request = {name: text for name, text in texts.items() if text} | {"dry_run": "dry_run" in fields}
    return f"/jobs/{visit.api.merges.create(request, idempotency_key=key)['id']}"
