"""When a topic gets its table's rows; ``tests/pipeline/test_publishing.py`` has the rest, on a real Pub/Sub."""

from types import SimpleNamespace

from model.errors import CommitOutcomeUnknownError
from streams.targets import topic_target
from streams.topics import TopicTargets
from tests.worlds.tables import ids_of


def test_nothing_is_published_while_the_outcome_of_a_commit_is_unknown(monkeypatch):
    published = []
    monkeypatch.setattr(TopicTargets, "_publish", lambda _self, name, _parts: published.append(name))
    outcome = frozenset({"orders"}), CommitOutcomeUnknownError("The connection was lost.")
    tables = SimpleNamespace(commit=lambda *_: outcome)
    targets = TopicTargets(tables, None, str, lambda *_: None)
    parts = {"orders": ["rows"], "members": ["rows"], topic_target("orders"): ["messages"]}
    assert targets.commit(parts, 1, ids_of("1")) == outcome
    assert published == []
