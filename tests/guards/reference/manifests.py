"""The page of fields of files: manifests, the options of streams, and sources.yaml."""

from typing import Any, Final

from pydantic import TypeAdapter

from model.stream_options import OPTIONS
from pipeline.entries import SourceEntry
from rollout.manifests.manifest import manifest_schema
from tests.guards.reference.markdown import link, page, prose
from tests.guards.reference.shapes import render_shape

INTRODUCTION: Final = """\
A [manifest](../manifests.md) describes a schedule or a rollout, and [sources.yaml](../pipeline.md) describes the
sources of a registry. A field that is not listed here is refused.
`refeed manifest schema` prints the JSON Schema of manifests for editors."""
FIRST: Final = {"ScheduleManifest": "kind: Schedule", "RolloutManifest": "kind: Rollout"}


def render_manifest_fields() -> str:
    """Return the page."""
    shapes = manifest_schema()["$defs"]
    first = [render_shape(name, shapes[name], "##") for name in FIRST]
    rest = [render_shape(name, shapes[name]) for name in sorted(set(shapes) - set(FIRST))]
    streams = [_options(kind.value, TypeAdapter(declared).json_schema()) for kind, declared in OPTIONS.items()]
    listed = "\n".join(f"- {link(name)}: `{kind}`" for name, kind in FIRST.items())
    contents = (
        f"{listed}\n- {link('Parts of manifests')}\n- {link('Options of streams')}\n- {link('sources.yaml')}"
    )
    sources = render_shape("sources.yaml", SourceEntry.model_json_schema(), "##")
    return page(
        "Fields of manifests and sources",
        "rollout/manifests, model/stream_options.py and pipeline/entries.py",
        INTRODUCTION,
        contents,
        *first,
        "## Parts of manifests",
        *rest,
        "## Options of streams\n\nAn option that is left out is as the setting of the stream's process says.",
        *streams,
        sources,
    )


def _options(kind: str, schema: dict[str, Any]) -> str:
    variables = {
        field: {**each, "description": f"{each.get('description', '').rstrip('.')}."}
        for field, each in schema["properties"].items()
    }
    text = prose(f"kind: {kind}")
    return render_shape(text, {**schema, "properties": variables})
