"""All functions by name."""

from collections.abc import Mapping
from typing import Final

from sql.functions import aggregates, arithmetic, geography, jsons, repairs, texts, times
from sql.functions.registry import Function

FUNCTIONS: Final[Mapping[str, Function]] = {
    name: function
    for theme in (texts, jsons, repairs, times, arithmetic, aggregates, geography)
    for name, function in theme.TABLE.functions.items()
}
