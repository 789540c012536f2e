"""Tables in Google BigQuery."""
