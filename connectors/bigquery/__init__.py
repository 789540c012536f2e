"""BigQuery: tables, exactly-once appends over the Storage Write API, leases, by Google's own clients."""
