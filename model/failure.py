"""The words for a job's failure that may leave the service: none of them quotes a message."""

from typing import Final

from model.errors import RefeedError

# Codes whose messages hold an engine's own words. Engines quote the values that they failed on.
_ENGINE_CODES: Final = frozenset({"query_failed", "warehouse_error"})
# Codes that no error class has.
_SENTENCES: Final = {
    "driver_died": "The driver ended without an error message.",
    "driver_failed": "The driver failed.",
    "interrupted": "The service was stopped.",
}


def fixed_sentence(code: str) -> str:
    """Return the sentence that stands for ``code``, the same for every job that fails with it.

    Example:
        >>> fixed_sentence("query_failed")
        'The query failed while it ran.'
        >>> fixed_sentence("unheard_of")
        'The job failed.'
    """
    return _SENTENCES.get(code) or _default_messages().get(code, "The job failed.")


def safe_message(code: str, message: str) -> str:
    """Return ``message``, or the fixed sentence where an engine wrote part of it; the log has the engine's words.

    Example:
        >>> safe_message("query_failed", "Could not convert string 'card 4111' to INT64")
        "The query failed while it ran. The job's log has the engine's own error."
        >>> safe_message("messages_failed", "12 of 50 messages could not be published.")
        '12 of 50 messages could not be published.'
    """
    return (
        f"{fixed_sentence(code)} The job's log has the engine's own error." if code in _ENGINE_CODES else message
    )


def _default_messages() -> dict[str, str]:
    """Return the default message of every error class by its code; a code's first class counts."""
    found: dict[str, str] = {}
    classes = [RefeedError]
    for kind in classes:
        classes.extend(kind.__subclasses__())
        found.setdefault(kind.code, (kind.__doc__ or "").strip().splitlines()[0])
    return found
