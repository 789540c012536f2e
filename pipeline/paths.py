"""Where in a message something stands: a path that no two places share."""

import json
import re
from typing import Final

_NOT_PLAIN: Final = re.compile(r"[.\[\]`\\]")
_INDEX: Final = re.compile(r'\[(?:[0-9]+|"(?:[^"\\]|\\.)*")\]')
_COUNTED_CHARACTERS: Final = 200
# A producer that uses data as names has more of them than anybody reads: what is beyond is counted together.
MAX_COUNTED: Final = 1000
OTHERS: Final = "(others)"


def field_name(name: str) -> str:
    """Return a field's name as a path has it; one with characters that paths are made of is quoted.

    Example:
        >>> field_name("price"), field_name("lines[0].price"), field_name("")
        ('price', '`lines[0].price`', '``')
    """
    if name and not _NOT_PLAIN.search(name):
        return name
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def map_place(path: str, key: str) -> str:
    r"""Return the place of a map's entry.

    Example:
        >>> map_place("stock", "a")
        'stock["a"]'
    """
    return f"{path}[{json.dumps(key, ensure_ascii=False)}]"


def counted_path(path: str) -> str:
    """Return the path as it is counted: without the numbers and keys of lists and maps, and not without end.

    Example:
        >>> counted_path('orders[17].stock["a"].new')
        'orders[].stock[].new'
    """
    return _INDEX.sub("[]", path[: _COUNTED_CHARACTERS * 2])[:_COUNTED_CHARACTERS]
