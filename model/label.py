"""Labels: pairs of texts that Google Cloud resources, and Refeed's jobs, carry."""

import re
from typing import Final

# Google Cloud's rule for labels: https://cloud.google.com/resource-manager/docs/labels-overview
_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE: Final = re.compile(r"[a-z0-9_-]{0,63}")


def is_label(key: str, value: str) -> bool:
    """Whether Google Cloud takes the pair as a label.

    Example:
        >>> is_label("team", "shop"), is_label("Team", "shop")
        (True, False)
    """
    return _KEY.fullmatch(key) is not None and _VALUE.fullmatch(value) is not None


def parse_label(text: str) -> tuple[str, str]:
    """Return the key and the value of ``key=value``.

    Raises:
        ValueError: it is none.

    Example:
        >>> parse_label("backup=yes")
        ('backup', 'yes')
    """
    key, equals, value = text.partition("=")
    if not equals or not is_label(key, value):
        raise ValueError("must be key=value with lower-case letters, digits, _ and -")
    return key, value
