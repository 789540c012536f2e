"""Where a job runs, and who finds it there ("Dataset locations", sections on specifying locations).

A job runs where its datasets are; one outside of the multi-regions US and EU is found by who names its location.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.standin.catalog import Catalog
from tests.standin.problems import Problem, not_found
from tests.standin.resources import LOCATION
from tests.standin.statements import parse_statement

_FOUND_ANYWHERE: Final = frozenset(("US", "EU"))


def choose_location(catalog: Catalog, project: str, config: Mapping[str, Any], asked: str | None) -> str:
    """Return where a job runs: where it is asked to, else where the first of its datasets is."""
    return asked or next((place for _, place in _places(catalog, project, config)), LOCATION)


def check_datasets(catalog: Catalog, job: Mapping[str, Any]) -> None:
    """Refuse a job that runs elsewhere than its datasets are.

    Raises:
        Problem: ``notFound``.
    """
    reference = job["jobReference"]
    for dataset, place in _places(catalog, reference["projectId"], job["configuration"]):
        if place.upper() != reference["location"].upper():
            name = ":".join(dataset)
            raise Problem(
                "notFound", f"Not found: Dataset {name} was not found in location {reference['location']}"
            )


def check_asked(job: Mapping[str, Any], asked: str | None) -> None:
    """Hide a job from who looks for it in another place.

    Raises:
        Problem: ``notFound``.
    """
    reference = job["jobReference"]
    place = reference["location"].upper()
    if (asked.upper() != place) if asked else (place not in _FOUND_ANYWHERE):
        raise not_found("Job", reference["projectId"], f"{asked or LOCATION}.{reference['jobId']}")


def _places(catalog: Catalog, project: str, config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    for dataset in dict.fromkeys(_datasets(project, config)):
        try:
            yield dataset, catalog.find_dataset(*dataset)["location"]
        except Problem:
            # A dataset that is not there is the job's own error.
            continue


def _datasets(project: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    part = config.get("query") or config.get("load") or {}
    if "query" in part:
        default = (part.get("defaultDataset") or {}).get("datasetId")
        try:
            statement = parse_statement(part["query"], project, default)
        except Problem:
            return
        for key in (*statement.tables, *([statement.target] if statement.target else [])):
            yield key.project, key.dataset
    if (target := part.get("destinationTable")) and not part.get("_anonymous"):
        yield target["projectId"], target["datasetId"]
