"""What a rollout's manifest may say, and every override that it may not."""

import pytest

from model.errors import RequestInvalidError
from model.rollout_record import RolloutSide
from model.stream_options import StreamKind, overridable
from model.watch_bounds import WatchBounds
from rollout.manifests.manifest import manifest_schema, parse_manifest
from rollout.manifests.rollout import RolloutManifest, RolloutSideWanted, read_document
from tests.rollout.manifests.test_manifest import faults

FASTER = """\
kind: Rollout
name: faster
stream: backup
description: Two seconds.
from: {release: "1.2"}
to:
  release: "1.3"
  options: {slots: 4}
  environment: {REFEED_BACKUP_BATCH_SECONDS: "2"}
strategy: restart
validate: {seconds: 60, min_messages: 10, thresholds: {lag_factor: 3}}
on_failure: halt
"""
SHORT = 'kind: Rollout\nname: short\nstream: backup\nfrom: {}\nto: {release: "1.3"}\n'


def spec_of(text: str) -> RolloutManifest:
    spec = parse_manifest(text.encode()).spec
    assert isinstance(spec, RolloutManifest)
    return spec


def test_a_rollout_is_read_and_is_the_same_from_what_is_kept():
    made = parse_manifest(FASTER.encode(), "faster")
    spec = spec_of(FASTER)
    assert (made.kind, spec.stream, spec.strategy, spec.on_failure) == ("Rollout", "backup", "restart", "halt")
    assert (spec.validate_.seconds, spec.validate_.thresholds) == (60, WatchBounds(lag_factor=3))
    assert read_document(RolloutManifest, made.document) == spec
    assert spec.to.resolve(StreamKind.BACKUP) == RolloutSide("1.3", {"slots": 4, "batch_seconds": 2.0})
    assert spec.from_.resolve(StreamKind.PIPELINE) == RolloutSide("1.2", {"group": "default"})


def test_what_is_not_said_is_an_update_with_the_usual_watch_that_is_taken_back():
    spec = spec_of(SHORT)
    assert (spec.strategy, spec.on_failure, spec.from_) == ("update", "rollback", RolloutSideWanted())
    assert (spec.validate_.seconds, spec.validate_.min_messages) == (120.0, 100)


@pytest.mark.parametrize("field", ["options", "environment"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PATH", "decides which programs and libraries a process runs"),
        ("LIBRARY_PATH", "decides which programs and libraries a process runs"),
        ("PYTHONPATH", "decides which"),
        ("PYTHONSTARTUP", "decides which code Python runs"),
        ("PYTHON_ANYTHING", "decides which code Python runs"),
        ("JAVA_HOME", "decides which Java"),
        ("JAVA_TOOL_OPTIONS", "decides which Java"),
        ("_JAVA_OPTIONS", "decides which Java"),
        ("JDK_JAVA_OPTIONS", "decides which Java"),
        ("CLASSPATH", "decides which Java"),
        ("LD_PRELOAD", "decides which libraries every program loads"),
        ("LD_LIBRARY_PATH", "decides which"),
        ("LD_AUDIT", "decides which libraries every program loads"),
        ("REFEED_SECRET", "is the deployment's secret"),
        ("REFEED_HOME", "is the folder of the streams' state"),
        ("REFEED_JOB_STORE", "is the store of all records"),
        ("spark.driver.extraJavaOptions", "decides which code Spark's JVMs run"),
        ("spark.executor.extraJavaOptions", "decides which code Spark's JVMs run"),
        ("spark.driver.extraClassPath", "decides which code Spark's JVMs load"),
        ("spark.executor.extraClassPath", "decides which code Spark's JVMs load"),
        ("spark.jars", "configures Spark, which can load other code"),
        ("SPARK_CLASSPATH", "decides which code Spark's JVMs load"),
        ("REFEED_SPARK_CONF", "configures Spark, which can load other code"),
    ],
)
def test_an_override_that_could_run_other_code_is_refused_with_its_reason(field, name, words):
    text = SHORT.replace("from: {}", f"from: {{{field}: {{{name}: x}}}}")
    # A name such as REFEED_SECRET is one of secrets too.
    (found,) = (each for each in faults(text) if "in clear text" not in each[3])
    assert found[:3] == (4, 18 if field == "options" else 22, f"/from/{field}/{name}")
    assert words in found[3]
    assert found[3].endswith("so a manifest can't set it.")


@pytest.mark.parametrize("name", ["REFEED_LAKE", "REFEED_WAREHOUSE", "HOME", "REFEED_API_KEYS", "pythonpath", ""])
def test_a_variable_that_is_no_setting_of_a_stream_is_refused(name):
    text = SHORT.replace("from: {}", f"from: {{environment: {{'{name}': x}}}}")
    assert any(each[2] == f"/from/environment/{name}" for each in faults(text))


def test_every_declared_setting_of_a_stream_is_taken_and_nothing_else_is_in_the_schema():
    for name in overridable():
        parse_manifest(SHORT.replace("from: {}", f"from: {{environment: {{{name}: '1'}}}}").encode())
    side = manifest_schema()["$defs"]["RolloutSideWanted"]["properties"]
    assert side["environment"]["propertyNames"] == {"enum": sorted(overridable())}


@pytest.mark.parametrize(
    ("old", "new", "pointer", "words"),
    [
        ("stream: backup\n", "", "/stream", "stream: Field required in a Rollout"),
        ("stream: backup", "stream: ../x", "/stream", "should match pattern"),
        ("from: {}\n", "", "/from", "from: Field required in a Rollout"),
        ('to: {release: "1.3"}', "to: {}", "", "`from` and `to` are the same"),
        ('to: {release: "1.3"}', "to: {release: 1.3}", "/to/release", "valid string"),
        ('to: {release: "1.3"}', 'to: {release: ""}', "/to/release", "at least 1 character"),
        ("from: {}", "from: {colour: red}", "/from/colour", "There is no field colour."),
        ("from: {}", "from: {}\nstrategy: canary", "/strategy", "'restart', 'update' or 'rolling'"),
        ("from: {}", "from: {}\non_failure: cry", "/on_failure", "'rollback' or 'halt'"),
        ("from: {}", "from: {}\nvalidate: {seconds: -1}", "/validate/seconds", "greater than or equal to 0"),
        ("from: {}", "from: {}\nvalidate: {seconds: 90000}", "/validate/seconds", "less than or equal to 86400"),
        ("from: {}", "from: {}\nvalidate: {min_messages: -1}", "/validate/min_messages", "greater than or equal"),
        (
            "from: {}",
            "from: {}\nvalidate: {thresholds: {lag_factor: -1, rate_factor: 2}}",
            "/validate/thresholds",
            "lag_factor must be a number from 0 to 1e+06; rate_factor must be a number from 0 to 1",
        ),
        (
            "from: {}",
            "from: {}\nvalidate: {thresholds: {speed: 1}}",
            "/validate/thresholds/speed",
            "There is no field speed.",
        ),
        ("from: {}", "from: {}\nvalidate: {may_differ: [a]}", "", "works only with the strategy `rolling`"),
        (
            "from: {}",
            "from: {options: {slots: 4}, environment: {REFEED_BACKUP_SLOTS: 4}}",
            "/from/environment/REFEED_BACKUP_SLOTS",
            "sets the option slots, but options also sets it",
        ),
    ],
)
def test_a_fault_has_its_place_and_its_sentence(old, new, pointer, words):
    assert old in SHORT
    ((_, _, at, message),) = faults(SHORT.replace(old, new))
    assert at == pointer
    assert words in message


@pytest.mark.parametrize("kind", [{}, {"kind": "Rolout"}, {"kind": 3}])
def test_a_manifest_of_no_kind_names_the_kinds(kind):
    text = SHORT.replace("kind: Rollout\n", "".join(f"{name}: {value}\n" for name, value in kind.items()))
    ((line, column, pointer, message),) = faults(text)
    assert (line, column, pointer) == (1, 1, "/kind")
    assert "kind must be one of Schedule, Rollout, Template." in message


def test_options_of_another_kind_of_stream_are_refused_when_its_kind_is_known():
    text = SHORT.replace("from: {}", "from: {options: {known_ids_seconds: 5}}")
    side = spec_of(text).from_
    assert side.resolve(StreamKind.BACKUP).options == {"known_ids_seconds": 5}
    with pytest.raises(RequestInvalidError, match="A pipeline stream has no option known_ids_seconds"):
        side.resolve(StreamKind.PIPELINE)
    with pytest.raises(RequestInvalidError, match="REFEED_BACKUP_SLOTS is not a setting of a pipeline stream"):
        RolloutSideWanted(environment={"REFEED_BACKUP_SLOTS": "1"}).resolve(StreamKind.PIPELINE)
    with pytest.raises(RequestInvalidError, match="slots must be a whole number from 1 to 1000"):
        RolloutSideWanted(environment={"REFEED_BACKUP_SLOTS": "many"}).resolve(StreamKind.BACKUP)
