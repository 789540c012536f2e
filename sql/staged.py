"""What became of a backfill, in GoogleSQL: the texts in sql/queries that ask its target's staging table."""

from sql.template import fill


def render_landed(staging: str) -> str:
    """Return the query for the rows that landed; parameters: partitions_from, backfill.

    Example:
        >>> render_landed("shop.staging.orders").split(" WHERE ")[0]
        'SELECT DISTINCT s._backfill_row AS landed FROM `shop`.`staging`.`orders` AS s'
    """
    return fill("landed", {"staging": staging}, {})


def render_merged(staging: str) -> str:
    """Return the query that counts those that are merged; parameters: those of landed, and merged_until."""
    return fill("merged", {"staging": staging}, {})


def render_revert(staging: str) -> str:
    """Return the statement that takes them out; parameters: partitions_from, backfill."""
    return fill("revert", {"staging": staging}, {})
