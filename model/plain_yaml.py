"""YAML that people write for Refeed: plain values, and each name once in a mapping."""

from typing import Any, Final

import yaml

# Whatever PyYAML raises for a text that it can't read; a date such as 2024-13-01 is a ValueError.
YAML_ERRORS: Final = (yaml.YAMLError, ValueError, RecursionError)


class PlainLoader(yaml.SafeLoader):
    """Makes plain values only, and refuses a name that comes twice in one mapping.

    YAML's own readers take the last of two and say nothing.
    """

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return the node of a mapping.

        Raises:
            ComposerError: a key comes twice.
        """
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value!r} comes twice", key.start_mark)
            seen.add(key.value)
        return node


def load_yaml(content: str | bytes, loader: type[PlainLoader] = PlainLoader) -> Any:
    """Return the value of a YAML document, None of an empty one.

    Raises:
        YAMLError, ValueError, RecursionError: it can't be read, see :data:`YAML_ERRORS`.

    Example:
        >>> load_yaml("topics: {orders: [1, 2]}")
        {'topics': {'orders': [1, 2]}}
    """
    # The loader makes plain values only, as its parent does.
    return yaml.load(content, Loader=loader)  # noqa: S506  # nosec B506
