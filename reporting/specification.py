"""A merge's specification, as its job's folder keeps it: sources with their rules, and the warehouse."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from model.entity import EntityRules
from model.settings import Settings
from reporting.request import MergeRequest
from warehouse.merges import MergeSource
from warehouse.open import open_warehouse, warehouse_from_json
from warehouse.port import Warehouse


def render_specification(
    job_id: str, request: MergeRequest, sources: Sequence[MergeSource], warehouse: Warehouse
) -> dict[str, Any]:
    """Return the specification of a merge, JSON-ready; later changes of the registry do not change it."""
    return {
        "id": job_id,
        **request.to_json(),
        "sources": [asdict(source) for source in sources],
        "warehouse": warehouse.to_json(),
    }


def read_sources(specification: Mapping[str, Any]) -> list[MergeSource]:
    """Return the sources that :func:`render_specification` was given."""
    return [
        MergeSource(found["name"], found["staging"], found["reporting"], _read_rules(found["rules"]))
        for found in specification["sources"]
    ]


def read_warehouse(specification: Mapping[str, Any], settings: Settings) -> Warehouse:
    """Return the warehouse of the deployment that made the job; ``settings`` are the driver's own.

    A merge that an older Refeed began has pieces of its settings instead, which go before the driver's.
    """
    if "place" not in specification:
        return warehouse_from_json(specification["warehouse"])
    given = specification["bigquery"]
    labels = tuple((key, value) for key, value in given["labels"])
    bigquery = replace(settings.bigquery, **{**given, "labels": labels})
    return open_warehouse(replace(settings, **specification["place"], bigquery=bigquery))


def _read_rules(found: Mapping[str, Any]) -> EntityRules:
    return EntityRules(**{**found, "key": tuple(found["key"]), "order": tuple(found["order"])})
