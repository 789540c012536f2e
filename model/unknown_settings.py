"""Variables that look like settings of Refeed and are none, such as a misspelt one."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from model.naming import did_you_mean
from model.settings import Settings

# Read by a command or a library alone; REFEED_FAILPOINTS is for tests.
_OTHER_VARIABLES: Final = (
    *("REFEED_HOME", "REFEED_API_URL", "REFEED_API_KEY", "REFEED_LOG_LEVEL", "REFEED_KMS_ENDPOINT"),
    "REFEED_FAILPOINTS",
)
_PREFIX: Final = "REFEED_"
# Kubernetes sets these in each pod for a service that is called refeed or refeed-api.
_SERVICE_LINK: Final = re.compile(r"REFEED_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)\w*|PORT(?:_\d+_\w+)?)")


def describe_unknown(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin like a setting and are none, in order, each with a sentence about it.

    Example:
        >>> describe_unknown({"REFEED_LAKES": "/lake"})
        {'REFEED_LAKES': 'Refeed has no setting REFEED_LAKES. Did you mean REFEED_LAKE?'}
    """
    known = {*_OTHER_VARIABLES, *_declared_names(Settings)}
    referred = {value.removeprefix("env:") for value in env.values() if value.startswith("env:")}
    return {
        name: f"Refeed has no setting {name}.{did_you_mean(name, sorted(known), prefix=_PREFIX)}"
        for name in sorted(env)
        if name.startswith(_PREFIX) and name not in known | referred and not _SERVICE_LINK.fullmatch(name)
    }


def _declared_names(declared: type[Any]) -> Iterator[str]:
    for each in fields(declared):
        if is_dataclass(each.type):
            yield from _declared_names(cast("type[Any]", each.type))
        elif (source := each.metadata.get("source")) is not None:
            yield from source.names
