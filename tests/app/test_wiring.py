"""Only ``app/`` makes what a process has once: the store, connections, the launcher, the services."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.test_house import CODE

ROOT = Path(__file__).parents[2]
MAKERS = {
    "AuditTrail", "BackfillService", "CompactionService", "Gatekeeper", "Inventory", "JobStore", "Keyring",
    "MergeService", "Notifier", "Planner", "PubSub", "StagedTopics", "TokenVerifier", "open_launcher",
    "open_store", "open_warehouse",
}  # fmt: skip


def calls_of_makers(tree: ast.AST) -> list[str]:
    return [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS
    ]


def test_nothing_but_the_wiring_makes_them() -> None:
    allowed = {
        # In the thread that attaches topics while the stream runs.
        ("backup/labelled.py", "PubSub"): 1,
        # The only object of its process that is ours to close.
        ("collector/server.py", "PubSub"): 1,
        # In a data source that Spark has unpickled, which has options and no settings.
        ("connectors/pubsub/source.py", "PubSub"): 1,
        ("jobs/store/store.py", "JobStore"): 1,
        # Of what the folder of an older merge says, and not of this process's settings.
        ("reporting/specification.py", "open_warehouse"): 1,
    }
    found = Counter(
        (str(path.relative_to(ROOT)), name)
        for folder in CODE
        if folder != "app"
        for path in (ROOT / folder).rglob("*.py")
        for name in calls_of_makers(ast.parse(path.read_text()))
    )
    assert found == allowed


@pytest.mark.parametrize(
    ("text", "count"), [("PubSub(project, None)", 1), ("def f(pubsub: PubSub): pass", 0), ("make(PubSub)", 0)]
)
def test_a_call_of_a_maker_is_seen(text: str, count: int) -> None:
    assert len(calls_of_makers(ast.parse(text))) == count


def test_nothing_is_kept_in_the_app_s_untyped_state_but_in_one_place() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "api").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        # request.app.state and app.state are the app's; request.state is a request's own.
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("app.state")
    }
    assert found == {"api/state.py"}
