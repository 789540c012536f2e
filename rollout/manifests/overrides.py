"""The variables that a rollout may set: the declared settings of a stream, and nothing that runs other code."""

import re
from typing import Final

from model.naming import did_you_mean
from model.stream_options import overridable

# A variable of the environment or a setting of Spark by its name, and why nobody may set it by a manifest.
_REFUSED: Final = (
    (r"PATH|.*_PATH", "decides which programs and libraries a process runs"),
    (r"_?PYTHON.*", "decides which code Python runs"),
    (r"_?JAVA.*|JDK_.*|CLASSPATH", "decides which Java and which code it runs"),
    (r"LD_.*|DYLD_.*", "decides which libraries every program loads"),
    (r"REFEED_SECRET", "is the deployment's secret, which marks every replay"),
    (r"REFEED_HOME", "is where the streams' state lies, and belongs to the agent"),
    (r"REFEED_JOB_STORE", "is where all records lie, and belongs to the agent"),
    (r".*extraJavaOptions", "decides which code Spark's JVMs run"),
    (r".*(?:extraClassPath|class[_.\-]?path|extraLibraryPath)", "decides which code Spark's JVMs load"),
    (r"spark[._].*|REFEED_SPARK_.*", "configures Spark, which can load other code"),
)
_RULES: Final = tuple((re.compile(pattern, re.IGNORECASE), why) for pattern, why in _REFUSED)


def refuse_code(name: str) -> str | None:
    """Return why no manifest may set ``name``, which could make other code run; None where it could not.

    Example:
        >>> refuse_code("LD_PRELOAD")
        'LD_PRELOAD decides which libraries every program loads: no manifest sets it.'
        >>> refuse_code("batch_seconds")
    """
    shown = name[:80]
    return next((f"{shown} {why}: no manifest sets it." for rule, why in _RULES if rule.fullmatch(name)), None)


def refuse_variable(name: str) -> str | None:
    """Return why a rollout may not set the variable ``name``; None where it may.

    Example:
        >>> refuse_variable("REFEED_BACKUP_SLOTS")
        >>> refuse_variable("EDITOR")
        'EDITOR is no setting of a stream.'
    """
    allowed = overridable()
    if name in allowed:
        return None
    return refuse_code(name) or f"{name[:80]} is no setting of a stream.{did_you_mean(name, allowed)}"
