"""Which permission each call needs and which role gives it, as Google's pages say."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

# (what it is asked of, the permission)
Need = tuple[str, str]

_TABLES: Final[Mapping[str, Mapping[str, list[str]]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text()
)
CALLS: Final[Mapping[str, list[list[str]]]] = {
    call: [need.split() for need in needs] for call, needs in _TABLES["calls"].items()
}
ROLES: Final = _TABLES["roles"]

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
