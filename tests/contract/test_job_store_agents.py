"""Agents in every job store: each has its last report, until it ends or falls silent."""

from datetime import timedelta

from jobs.store.tables import REPORTS
from model.stream import AgentReport

REPORT = AgentReport("a|1", "mars", "/home/refeed", "0.1.0", ({"name": "0.2.0", "formats": {"state": {}}},))


def test_an_agent_has_one_report_its_last(store):
    store.put_agent_report(REPORT)
    later = AgentReport("a|1", "mars", "/home/refeed", "0.1.0", ())
    store.put_agent_report(later)
    store.put_agent_report(AgentReport("b|2", "earth", "/", "0.3.0", REPORT.releases))
    first, second = store.list_agent_reports()
    assert (first.report.host, first.report.releases) == ("earth", [{"name": "0.2.0", "formats": {"state": {}}}])
    assert (second.report.agent, list(second.report.releases)) == ("a|1", [])
    assert second.reported_at.utcoffset() == timedelta(0)


def test_an_agent_that_ends_or_is_silent_for_a_minute_is_none_any_more(store):
    store.put_agent_report(REPORT)
    store.remove_agent_report("a|1")
    assert store.list_agent_reports() == []
    store.put_agent_report(REPORT)
    with store._database.write() as connection:
        silent = store._database.now(connection) - timedelta(seconds=61)
        connection.execute(REPORTS.update().values(reported_at=silent))
    assert store.list_agent_reports() == []
    store.put_agent_report(AgentReport("b|2", "earth", "/", "0.3.0", ()))
    with store._database.read() as connection:
        assert [row.name for row in connection.execute(REPORTS.select())] == ["b|2"]
