output "environment" {
  description = "Settings of every Refeed process of this deployment."
  value = {
    REFEED_PROJECT                            = var.project
    REFEED_WAREHOUSE                          = "bigquery"
    REFEED_ARCHIVE_TABLE                      = "${var.project}.${google_bigquery_dataset.backup.dataset_id}.${google_bigquery_table.refeed["messages"].table_id}"
    REFEED_ARCHIVE_PARTITIONING               = lower(var.partitioning)
    REFEED_BIGQUERY_LOCATION                  = var.location
    REFEED_BIGQUERY_PARTITION_EXPIRATION_DAYS = tostring(var.retention_days)
    REFEED_BIGQUERY_REQUIRE_PARTITION_FILTER  = tostring(var.require_partition_filter)
    REFEED_BIGQUERY_KMS_KEY                   = var.kms_key_name
    REFEED_BIGQUERY_LABELS                    = join(",", [for key, value in var.labels : "${key}=${value}"])
    REFEED_DEAD_LETTER_TABLE                  = "${var.project}.${google_bigquery_dataset.backup.dataset_id}.dead_letters"
    REFEED_MERGE_AT                           = var.merge_at
    REFEED_MANIFESTS                          = var.manifests_bucket == "" ? "" : "gs://${var.manifests_bucket}"
    REFEED_MANIFESTS_SUBSCRIPTION             = join("", [for each in google_pubsub_subscription.manifests : each.name])
    REFEED_COLLECTOR_TOPICS                   = join(",", var.collector_topics)
  }
}

output "service_accounts" {
  description = "Who each component runs as."
  value       = { for name, account in google_service_account.component : name => account.email }
}
