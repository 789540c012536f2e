"""What a merge's driver has to know, as its job's folder keeps it: sources with their rules, and the warehouse."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from model.entity import EntityRules
from model.settings import BigQuerySettings, Settings
from reporting.merge import MergeSource
from reporting.request import MergeRequest

# What says where the tables are. A driver's own environment may be another machine's.
_PLACE: Final = ("warehouse", "lake", "project", "archive_table", "query_memory")


def render_specification(
    job_id: str, request: MergeRequest, sources: Sequence[MergeSource], settings: Settings
) -> dict[str, Any]:
    """Return the specification of a merge, JSON-ready; what the registry says later does not change it."""
    return {
        "id": job_id,
        **request.to_json(),
        "sources": [asdict(source) for source in sources],
        "place": {name: getattr(settings, name) for name in _PLACE},
        "bigquery": asdict(settings.bigquery),
    }


def read_sources(specification: Mapping[str, Any]) -> list[MergeSource]:
    """Return the sources that :func:`render_specification` was given."""
    return [
        MergeSource(found["name"], found["staging"], found["reporting"], _read_rules(found["rules"]))
        for found in specification["sources"]
    ]


def read_warehouse(specification: Mapping[str, Any], settings: Settings) -> Settings:
    """Return ``settings`` with the warehouse of the deployment that made the job."""
    bigquery = specification["bigquery"]
    labels = tuple((key, value) for key, value in bigquery["labels"])
    return replace(settings, **specification["place"], bigquery=BigQuerySettings(**{**bigquery, "labels": labels}))


def _read_rules(found: Mapping[str, Any]) -> EntityRules:
    return EntityRules(**{**found, "key": tuple(found["key"]), "order": tuple(found["order"])})
