import re

from model import errors
from model.errors import CredentialsMissingError, RefeedError


def all_errors() -> list[type[RefeedError]]:
    found = [RefeedError]
    for error in found:
        found += [e for e in error.__subclasses__() if e.__module__ == errors.__name__ and e not in found]
    return found


def test_every_error_has_a_code_of_its_own_and_a_sentence():
    found = all_errors()
    of_services = {error for error in found if issubclass(error, CredentialsMissingError)}
    assert {error.code for error in of_services} == {"credentials_missing"}
    codes = [error.code for error in found if error is CredentialsMissingError or error not in of_services]
    assert sorted(codes) == sorted(set(codes))
    for error in found:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)
        assert error().message.endswith((".", ";", "?")) or ":" in error().message
