import re

from model import errors
from model.errors import RefeedError


def all_errors() -> list[type[RefeedError]]:
    found = [RefeedError]
    for error in found:
        found += [e for e in error.__subclasses__() if e.__module__ == errors.__name__]
    return found


def test_every_error_has_a_code_of_its_own_and_a_sentence():
    codes = [error.code for error in all_errors()]
    assert sorted(codes) == sorted(set(codes))
    for error in all_errors():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)
        assert error().message.endswith((".", ";", "?")) or ":" in error().message
