output "environment" {
  description = "Settings of every Refeed process of this deployment."
  value = {
    REFEED_PROJECT              = var.project
    REFEED_WAREHOUSE            = "bigquery"
    REFEED_ARCHIVE_TABLE        = "${var.project}.${google_bigquery_dataset.backup.dataset_id}.${google_bigquery_table.refeed["messages"].table_id}"
    REFEED_ARCHIVE_PARTITIONING = lower(var.partitioning)
    REFEED_BIGQUERY_LOCATION    = var.location
  }
}

output "service_accounts" {
  description = "Who each component runs as."
  value       = { for name, account in google_service_account.component : name => account.email }
}
