"""How a request's field is declared once: the API, the terminal and a job read it there."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

# What pydantic calls a schema's makers with: https://docs.pydantic.dev/latest/concepts/types/
_Handler = Callable[[Any], dict[str, Any]]
_Document = TypeVar("_Document", bound=type)


# An example may be a dictionary, which has no hash.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldSpec:
    """What a field means, which values it takes, and how the terminal asks for it.

    ``parse`` takes a text or raises ValueError, whose text says what the field takes.

    ``least``, ``above`` and ``most`` bound a number. OpenAPI shows them, and the use case checks them, so that one
    answer names all that is wrong with a request. ``shortest`` and ``longest`` bound a text and are checked where
    JSON is read. The terminal's ``help`` is the description and its ``flag`` the field's name where they are None.
    """

    description: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    shortest: int | None = None
    longest: int | None = None
    example: Any = None
    is_changeable: bool = False
    help: str | None = None
    flag: str | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None

    def allows(self, number: float) -> bool:
        """Whether a number is within the bounds; NaN is not.

        Example:
            >>> [FieldSpec(description="", least=1, most=3).allows(n) for n in (0, 1, 3, 4, float("nan"))]
            [False, True, True, False, False]
        """
        return (
            number == number  # noqa: PLR0124 - NaN is not
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: _Handler) -> dict[str, Any]:
        """Return pydantic's schema with the bounds of a text; pydantic calls it."""
        schema = handler(source)
        text = schema["schema"] if schema["type"] == "nullable" else schema
        for name, bound in (("min_length", self.shortest), ("max_length", self.longest)):
            if bound is not None:
                text[name] = bound
        return schema

    def __get_pydantic_json_schema__(self, schema: Any, handler: _Handler) -> dict[str, Any]:
        """Return OpenAPI's schema with the description and the bounds of a number; pydantic calls it."""
        known = {
            "description": self.description,
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
            "examples": None if self.example is None else [self.example],
        }
        return {**handler(schema), **{name: value for name, value in known.items() if value is not None}}


def json_name(name: str) -> str:
    """Return a field's name in JSON: without the ``_`` that Python needs after a reserved word.

    Example:
        >>> json_name("from_"), json_name("to")
        ('from', 'to')
    """
    return name.removesuffix("_")


class Declared:
    """A frozen dataclass that the API reads from JSON: strictly typed, and without fields that it does not know.

    A dataclass below it declares each field as ``name: Annotated[type, FieldSpec(...)] = default``.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "alias_generator": json_name,
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: _Handler) -> dict[str, Any]:
        """Return pydantic's schema, which takes a JSON object for the class itself; pydantic calls it.

        In strict mode pydantic takes instances of a dataclass alone:
        https://docs.pydantic.dev/latest/concepts/conversion_table/
        """
        return {**handler(source), "strict": False}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: _Handler) -> dict[str, Any]:
        """Return OpenAPI's schema with an example; pydantic calls it."""
        found = handler(schema)
        if example := example_of(cls):
            found.setdefault("examples", [example])
        return found


def declared(document: _Document) -> _Document:
    """Let pydantic read a TypedDict as it reads a :class:`Declared` dataclass; a decorator."""
    document.__pydantic_config__ = Declared.__pydantic_config__  # type: ignore[attr-defined]
    return document


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field of a declaration; ``type`` has no metadata, ``default`` is MISSING where one has to be given."""

    name: str
    type: Any
    default: Any
    spec: FieldSpec

    @property
    def kind(self) -> Any:
        """The type without None."""
        kinds = [kind for kind in get_args(self.type) if kind is not NoneType]
        return kinds[0] if isinstance(self.type, UnionType) and len(kinds) == 1 else self.type


def declared_fields(declaration: type) -> Iterator[DeclaredField]:
    """Yield the fields of a dataclass that have a :class:`FieldSpec`, in their order."""
    hints = get_type_hints(declaration, include_extras=True)
    for field in fields(declaration):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            kind, *metadata = get_args(hint)
            for spec in metadata:
                if isinstance(spec, FieldSpec):
                    yield DeclaredField(field.name, kind, _default_of(field), spec)


def example_of(declaration: type) -> dict[str, Any]:
    """Return an example in JSON, of the fields that have one."""
    found = ((field.name, field.spec.example) for field in declared_fields(declaration))
    return {name: example for name, example in found if example is not None}


def _default_of(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
