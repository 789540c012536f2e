"""The page of fields of files: manifests, the options of streams, and sources.yaml."""

from typing import Final

from pydantic import TypeAdapter

from collector.settings import CollectorFile
from model.stream_options import OPTIONS, StreamOptions
from pipeline.entries import SourceEntry
from rollout.manifests.manifest import manifest_schema
from tests.document import openapi_document
from tests.guards.reference.markdown import link, page
from tests.guards.reference.shapes import render_shape

INTRODUCTION: Final = """\
This page lists the fields of three kinds of files: [manifests](../manifests.md), the registry's
[sources.yaml](../pipeline.md), and the [settings file of a collector](../collectors.md#settings). Refeed refuses a
file with any other field. `refeed check --manifest-schema` prints the JSON Schema of manifests for editors."""
COLLECTOR: Final = "Settings of a collector"
SHARED: Final = """\
### {name}

The fields are the same as [in a call of the API](http.md#{anchor}).
"""
OPTION: Final = """\
If the column *default* names a setting, a missing or null option takes the value of that variable."""
FIRST: Final = {"ScheduleManifest": "kind: Schedule", "RolloutManifest": "kind: Rollout"}


def render_manifest_fields() -> str:
    shapes = manifest_schema()["$defs"]
    first = [render_shape(name, shapes[name], "##") for name in FIRST]
    shared = set(openapi_document()["components"]["schemas"])
    rest = [
        SHARED.format(name=name, anchor=name.lower()) if name in shared else render_shape(name, shapes[name])
        for name in sorted(set(shapes) - set(FIRST))
    ]
    streams = [_options(kind.value, declared) for kind, declared in OPTIONS.items()]
    named = [f"{link(name)}: `{kind}`" for name, kind in FIRST.items()]
    others = [link(name) for name in ("Parts of manifests", "Options of streams", "sources.yaml", COLLECTOR)]
    contents = "\n".join(f"- {each}" for each in [*named, *others])
    sources = render_shape("sources.yaml", SourceEntry.model_json_schema(), "##")
    collector = TypeAdapter(CollectorFile).json_schema()
    sections = [render_shape(name, shape) for name, shape in sorted(collector["$defs"].items())]
    return page(
        "Fields of files",
        "rollout/manifests, model/stream_options.py, pipeline/entries.py and collector/settings.py",
        INTRODUCTION,
        contents,
        *first,
        "## Parts of manifests",
        *rest,
        f"## Options of streams\n\n{OPTION}",
        *streams,
        sources,
        render_shape(COLLECTOR, collector, "##"),
        *sections,
    )


def _options(kind: str, declared: type[StreamOptions]) -> str:
    schema = TypeAdapter(declared).json_schema()
    for field, each in schema["properties"].items():
        if variable := declared.VARIABLES.get(field):
            each["x-setting"] = variable
    return render_shape(f"kind: {kind}", schema)
