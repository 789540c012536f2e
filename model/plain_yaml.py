"""YAML that people write for Refeed: plain values, each name once in a mapping, every fault with its place."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

_FIRST: Final = (1, 1)
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlFault:
    """Something that is wrong with a text; ``line`` and ``column`` count from 1."""

    message: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class YamlFaultsError(ValueError):
    """A text is no YAML of plain values; ``faults`` has all that could be found."""

    def __init__(self, faults: Sequence[YamlFault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class PlainLoader(yaml.SafeLoader):
    """Makes plain values only, and refuses a name that comes twice in one mapping.

    YAML's own readers take the last of two and say nothing. ``faults`` gets what is wrong, and reading goes on.
    """

    # Whether a node may be used again by its anchor.
    has_aliases = True

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.faults: list[YamlFault] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if not self.has_aliases and self.check_event(yaml.AliasEvent):
            event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
            self.add("an alias stands here: write the value out", event.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return the node of a mapping."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                self.add(f"{key.value!r} comes twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node; of one that has none, None."""
        try:
            return super().construct_object(node, deep)
        except yaml.MarkedYAMLError:
            raise
        except ValueError as exc:
            # A date such as 2024-13-01.
            self.add(str(exc), node.start_mark)
            return None

    def add(self, message: str, mark: Any) -> None:
        """Note a fault at a mark."""
        self.faults.append(YamlFault(message, mark.line + 1, mark.column + 1))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The value of a text, None of an empty one, and where its parts stand."""

    value: Any
    root: yaml.Node | None

    def place(self, path: Sequence[str | int]) -> tuple[int, int]:
        """Return line and column of the name, or of the item of a list, that a path leads to.

        A path that leads beyond what is there gives the last part of it that is.

        Example:
            >>> document = read_yaml("topics: {orders: [1, 2]}")
            >>> document.place(["topics", "orders", 1]), document.place(["topics", "gone"])
            ((1, 22), (1, 1))
        """
        found, node = _FIRST, self.root
        if node is not None:
            found = (node.start_mark.line + 1, node.start_mark.column + 1)
        for part in path:
            mark, node = _child(node, part)
            if mark is None:
                break
            found = (mark.line + 1, mark.column + 1)
        return found

    def place_in_text(self, path: Sequence[str | int], line: int, column: int) -> tuple[int, int] | None:
        r"""Return where a line and column of a text in the document stand, None where YAML folds or escapes it.

        Example:
            >>> read_yaml("query: |\n  SELECT 1\n  FROM x").place_in_text(["query"], 2, 6)
            (3, 8)
            >>> read_yaml("query: SELECT 1").place_in_text(["query"], 1, 8)
            (1, 15)
        """
        node = self.root
        for part in path:
            _, node = _child(node, part) if node is not None else (None, None)
        if not isinstance(node, yaml.ScalarNode):
            return None
        first, last = node.start_mark, node.end_mark
        if node.style is None:
            return (first.line + 1, first.column + column) if line == 1 and first.line == last.line else None
        if node.style != "|":
            return None
        written = str(first.buffer)[first.pointer : last.pointer].splitlines()
        indents = [len(each) - len(each.lstrip(" ")) for each in written[1:] if each.strip()]
        # "|2" would say how much of the spaces is the text's own.
        if not indents or any(character.isdigit() for character in written[0]):
            return None
        return first.line + 1 + line, min(indents) + column

    def place_of(self, pointer: str) -> tuple[int, int]:
        """Return the place of a JSON pointer, as :meth:`place` does of a path."""
        return self.place([part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]])


def read_yaml(content: str | bytes, loader: type[PlainLoader] = PlainLoader) -> YamlDocument:
    r"""Return the document of a text in UTF-8.

    Raises:
        YamlFaultsError: it is none; the error has all that could be found.

    Example:
        >>> read_yaml("topics: {orders: [1, 2]}").value
        {'topics': {'orders': [1, 2]}}
        >>> read_yaml("a: 1\nb: 2\na: 3\nb: 4")
        Traceback (most recent call last):
        ...
        model.plain_yaml.YamlFaultsError: line 3, column 1: 'a' comes twice; line 4, column 1: 'b' comes twice
    """
    (document,) = _read(content, loader, lambda reader: [reader.get_single_node()])
    return document


def read_yaml_stream(content: str | bytes, loader: type[PlainLoader] = PlainLoader) -> list[YamlDocument]:
    r"""Return the documents of a text; the items of a document that is a list are documents too.

    Places count from the beginning of the text. Empty documents are left out.

    Raises:
        YamlFaultsError: a document is none; the error has all that could be found.

    Example:
        >>> [each.value for each in read_yaml_stream("---\na: 1\n---\n---\n[{a: 2}, {a: 3}]")]
        [{'a': 1}, {'a': 2}, {'a': 3}]
    """

    def take_nodes(reader: PlainLoader) -> list[yaml.Node | None]:
        found: list[yaml.Node | None] = []
        while reader.check_node():
            found.append(reader.get_node())
        return found

    documents: list[YamlDocument] = []
    for document in _read(content, loader, take_nodes):
        root = document.root
        if isinstance(root, yaml.SequenceNode):
            documents += map(YamlDocument, document.value, root.value)
        elif document.value is not None:
            documents.append(document)
    return documents


def _read(
    content: str | bytes, loader: type[PlainLoader], take_nodes: Callable[[PlainLoader], list[yaml.Node | None]]
) -> list[YamlDocument]:
    text = _decode(content) if isinstance(content, bytes) else content
    reader = None
    try:
        reader = loader(text)
        documents = [
            YamlDocument(None if root is None else reader.construct_document(root), root)
            for root in take_nodes(reader)
        ]
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = _FIRST if mark is None else (mark.line + 1, mark.column + 1)
        last = YamlFault(" ".join(filter(None, (exc.context, exc.problem))) or str(exc), *place)
    except yaml.reader.ReaderError as exc:
        before = text[: exc.position]
        last = YamlFault(
            f"the character U+{ord(text[exc.position]):04X} can't stand in YAML",
            before.count("\n") + 1,
            len(before) - before.rfind("\n"),
        )
    except RecursionError as exc:
        last = YamlFault(str(exc), *_FIRST)
    else:
        if reader.faults:
            raise YamlFaultsError(reader.faults)
        return documents
    raise YamlFaultsError([*(() if reader is None else reader.faults), last])


def walk_texts(value: Any) -> Iterator[tuple[_Path, str]]:
    """Yield each text of a plain value, with its path.

    Example:
        >>> list(walk_texts({"topics": ["orders", 3]}))
        [(('topics', 0), 'orders')]
    """
    return ((path, each) for path, each in _walk(value) if isinstance(each, str))


def walk_names(value: Any) -> Iterator[tuple[_Path, str]]:
    """Yield each name in a plain value, with its path.

    Example:
        >>> list(walk_names([{"topics": {"a": 3}}]))
        [((0, 'topics'), 'topics'), ((0, 'topics', 'a'), 'a')]
    """
    return ((path, part) for path, _ in _walk(value) for part in path[-1:] if isinstance(part, str))


def _walk(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield a plain value and all within it, each with its path: a name is a text, a place in a list a number."""
    yield path, value
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, (*path, str(name)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk(inner, (*path, number))


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        before = content[: exc.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        raise YamlFaultsError([YamlFault("this is not UTF-8", before.count(b"\n") + 1, column)]) from exc


def _child(node: yaml.Node | None, part: str | int) -> tuple[Any, yaml.Node | None]:
    """Return where a part of a node begins, and its node; None where there is none."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and str(part).isdecimal() and int(part) < len(node.value):
        item: yaml.Node = node.value[int(part)]
        return item.start_mark, item
    return None, None


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.2 takes for a number, such as 12e34: PyYAML knows the numbers of 1.1 alone."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+\Z"), list("-0123456789")
)
# The client returns answers of the API as a subclass of dict, which PyYAML does not write by itself.
_Dumper.add_multi_representer(dict, _Dumper.represent_dict)


def write_yaml(value: Any) -> str:
    """Return a JSON value as YAML, which every reader takes for the same value.

    Example:
        >>> print(write_yaml({"sha": "12e34", "zone": "no", "rate": 500}), end="")
        sha: '12e34'
        zone: 'no'
        rate: 500
    """
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return written
