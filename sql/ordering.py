"""The order in which a query's rows keep what ordering keys promise."""

from typing import Final

ORDERED_BY: Final = ("ordering_key", "publish_time", "message_id")


def render_in_key_order(sql: str) -> str:
    """Return the lake's query ``sql`` with its rows sorted by ordering key, and each key's as they were published.

    The query has to give the columns of ``ORDERED_BY``. Messages of a key that were published in the same
    microsecond go by their ids, which Pub/Sub counts up.

    Example:
        >>> print(render_in_key_order("SELECT * FROM refeed_archive"))
        SELECT * FROM (
        SELECT * FROM refeed_archive
        ) ORDER BY ordering_key NULLS FIRST, publish_time, length(message_id), message_id
    """
    return (
        f"SELECT * FROM (\n{sql}\n) "
        "ORDER BY ordering_key NULLS FIRST, publish_time, length(message_id), message_id"
    )
