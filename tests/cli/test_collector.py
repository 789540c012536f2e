import pytest


@pytest.fixture
def served(monkeypatch):
    found = []
    monkeypatch.setattr("collector.server.serve", lambda *args, **options: found.append((args[1], options)))
    return found


def test_topics_come_from_the_option_or_the_variable(refeed, pubsub_server, served, monkeypatch):
    monkeypatch.setenv("REFEED_COLLECTOR_TOPICS", "members")
    assert refeed("collector", "--port", "0").code == 0
    assert refeed("collector", "--port", "0", "--host", "::1", "--topics", "orders, shop.*").code == 0
    assert [collector.allowed for collector, _ in served] == [("members",), ("orders", "shop.*")]
    assert served[1][1] == {"host": "::1", "port": 0}


def test_the_settings_file_s_faults_end_the_command(refeed, pubsub_server, tmp_path):
    path = tmp_path / "collector.yaml"
    path.write_text("topics: {orders: {format: xml}, members: {}}")
    result = refeed("collector", "--port", "0", "--topics", "orders", "--settings", str(path))
    assert result.code == 2
    for part in ("settings_invalid", "topics.orders.format", "topics.members"):
        assert part in result.err
