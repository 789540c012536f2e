"""The releases that streams can be of: those of every agent that lives, and of this home."""

from collections.abc import Mapping, Sequence
from socket import gethostname
from typing import Any

from jobs.store import JobStore
from model.errors import ReleaseNotFoundError
from model.naming import did_you_mean
from model.stream import StoredAgentReport
from rollout.releases import Releases


class KnownReleases:
    """What agents report of their homes, and what is in this one, which an agent of this machine may share."""

    def __init__(self, store: JobStore, releases: Releases) -> None:
        self._store = store
        self._releases = releases

    def list_agents(self) -> Sequence[StoredAgentReport]:
        """Return the agents that live, by host."""
        return self._store.list_agent_reports()

    def list_releases(self) -> list[dict[str, Any]]:
        """Return every release in JSON, by name; a name is there twice when two homes have another wheel under it.

        ``hosts`` are the machines whose agents have it: none where this home alone has it.
        """
        found: dict[tuple[str, str], tuple[Mapping[str, Any], set[str]]] = {}

        def add(release: Mapping[str, Any], hosts: Sequence[str]) -> None:
            found.setdefault((release["name"], release["sha256"]), (release, set()))[1].update(hosts)

        agents = self.list_agents()
        here = [each.report.host for each in agents if self._is_here(each)]
        for own in self._releases.list_readable():
            add(own.to_json(), here)
        for each in agents:
            if not self._is_here(each):
                for reported in each.report.releases:
                    add(reported, [each.report.host])
        return [{**release, "hosts": sorted(hosts)} for _, (release, hosts) in sorted(found.items())]

    def check_name(self, name: str | None) -> None:
        """Check that an agent has the release, or this home while no agent lives; None is the installed one.

        Raises:
            ReleaseNotFoundError: there is none; ``details["releases"]`` has the names of those there are.
        """
        if name is None:
            return
        is_any = bool(self.list_agents())
        names = sorted({str(each["name"]) for each in self.list_releases() if each["hosts"] or not is_any})
        if name not in names:
            where = "No agent has" if is_any else "No agent runs, and this home does not have"
            there = f"Installed releases: {', '.join(names)}." if names else "There is only the installed version."
            message = f"{where} a release {name[:80]}.{did_you_mean(name, names)} {there}"
            raise ReleaseNotFoundError(message, name=name[:80], releases=names)

    def _is_here(self, agent: StoredAgentReport) -> bool:
        return (agent.report.host, agent.report.home) == (gethostname(), str(self._releases.home))
