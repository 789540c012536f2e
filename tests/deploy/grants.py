"""What docs/iam.md and Terraform grant each component."""

import json
import re
from pathlib import Path

from tests.deploy.permissions import Need, granted

ROOT = Path(__file__).resolve().parents[2]


def table() -> dict[str, list[tuple[str, str]]]:
    """What docs/iam.md's table grants: by component, (what it is granted on, role)."""
    page = (ROOT / "docs" / "iam.md").read_text()
    found: dict[str, list[tuple[str, str]]] = {}
    component = ""
    for named, roles, where in re.findall(r"^\|([^|]*)\|([^|]*`roles/[^|]*)\|([^|]+)\|", page, re.MULTILINE):
        component = named.strip() or component
        for role in re.findall(r"`(roles/[\w.]+)`", roles):
            found.setdefault(component, []).extend((place.strip(), role) for place in where.split(","))
    return found


PLACES = {
    "project": "project",
    "the archive's dataset": "archive",
    "staging's datasets": "staging",
    "reporting's datasets": "reporting",
    "the backup subscriptions": "subscription",
    "the topics that backfills may publish to": "topic",
    "the topics of REFEED_COLLECTOR_TOPICS": "topic",
}


def on_the_page(component: str) -> set[tuple[str, str]]:
    """What the page grants a component; what only tagged columns need is left out."""
    return {(PLACES[where], role) for where, role in table()[component] if where in PLACES}


def in_terraform(component: str) -> set[tuple[str, str]]:
    """What Terraform grants a component: its roles.json, and the members of single resources in iam.tf."""
    given = json.loads((ROOT / "deploy" / "terraform" / "roles.json").read_text())[component]
    found = {("project", role) for role in given["project"]} | set(given["datasets"].items())
    code = (ROOT / "deploy" / "terraform" / "iam.tf").read_text()
    for kind in ("subscription", "topic"):
        block = (
            rf'"google_pubsub_{kind}_iam_member" "\w+" {{[^}}]*?role +\= "([^"]+)"[^}}]*component\["{component}"\]'
        )
        found |= {(kind, role) for role in re.findall(block, code)}
    return found


def check(needed: set[Need], grants: set[tuple[str, str]]) -> None:
    """Every permission that is needed is granted, and no role could be left out."""
    missing = needed - granted(grants)
    assert missing == set(), missing
    for grant in grants:
        assert needed - granted(grants - {grant}), f"{grant} is there for nothing"
