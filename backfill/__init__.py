"""The backfill: a query over the archive, its rows published to a topic again, tagged."""
