# Refeed on Google Cloud: the archive, the datasets of staging and reporting, the backup subscriptions and who may do
# what.
#
#   cd deploy/terraform
#   terraform init
#   terraform apply -var project=my-project

terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
  }
}

provider "google" {
  project = var.project
}

resource "google_project_service" "needed" {
  for_each           = toset(["bigquery.googleapis.com", "bigquerystorage.googleapis.com", "monitoring.googleapis.com", "pubsub.googleapis.com"])
  service            = each.key
  disable_on_destroy = false
}

# -- the archive

resource "google_bigquery_dataset" "backup" {
  dataset_id  = var.dataset
  location    = var.location
  description = "Every raw Pub/Sub message, and what Refeed keeps beside them."
  labels      = local.labels

  dynamic "default_encryption_configuration" {
    for_each = var.kms_key_name == "" ? [] : [var.kms_key_name]
    content {
      kms_key_name = default_encryption_configuration.value
    }
  }

  lifecycle {
    # "Customer-managed Cloud KMS keys": a dataset in US takes a key of us, one in EU a key of europe.
    precondition {
      condition     = var.kms_key_name == "" || try(split("/", var.kms_key_name)[3], "") == local.key_location
      error_message = "kms_key_name has to lie in the dataset's location: us for US, europe for EU, else the region."
    }
  }

  depends_on = [google_project_service.needed]
}

# The pipeline makes staging tables in these, merges make reporting tables.
resource "google_bigquery_dataset" "rows" {
  for_each    = setsubtract(setunion(var.staging_datasets, var.reporting_datasets), [var.dataset])
  dataset_id  = each.key
  location    = var.location
  description = contains(var.staging_datasets, each.key) ? "Rows as the pipeline received them." : "One row an entity."
  labels      = local.labels

  dynamic "default_encryption_configuration" {
    for_each = var.kms_key_name == "" ? [] : [var.kms_key_name]
    content {
      kms_key_name = default_encryption_configuration.value
    }
  }

  depends_on = [google_project_service.needed]
}

locals {
  # What 'refeed init' would create: the archive, dead letters of its appends and the record of its attempts.
  tables       = jsondecode(file("${path.module}/tables.json"))
  key_location = lower(var.location) == "eu" ? "europe" : lower(var.location)
  # 'refeed init' puts app=refeed on what it finds without it.
  labels = merge({ app = "refeed" }, var.labels)
}

resource "google_bigquery_table" "refeed" {
  for_each                 = local.tables
  dataset_id               = google_bigquery_dataset.backup.dataset_id
  table_id                 = each.key
  description              = each.value.description
  schema                   = jsonencode(each.value.schema)
  clustering               = length(each.value.clustering) == 0 ? null : each.value.clustering
  require_partition_filter = each.key == "messages" ? var.require_partition_filter : each.value.require_partition_filter
  labels                   = local.labels
  deletion_protection      = true

  time_partitioning {
    type          = each.key == "messages" ? var.partitioning : "DAY"
    expiration_ms = local.expiration_days[each.key] == 0 ? null : local.expiration_days[each.key] * 24 * 60 * 60 * 1000
  }

  dynamic "encryption_configuration" {
    for_each = var.kms_key_name == "" ? [] : [var.kms_key_name]
    content {
      kms_key_name = encryption_configuration.value
    }
  }
}

locals {
  expiration_days = merge(
    { for name, table in local.tables : name => table.expiration_days },
    { messages = var.retention_days },
  )
}

# -- topics and their backup subscriptions

resource "google_pubsub_topic" "backed_up" {
  for_each = var.create_topics ? var.backups : {}
  name     = each.key
  labels   = local.labels

  depends_on = [google_project_service.needed]
}

resource "google_pubsub_subscription" "backup" {
  for_each                   = var.backups
  name                       = "refeed-backup.${each.key}"
  topic                      = each.key
  filter                     = each.value
  ack_deadline_seconds       = var.ack_deadline_seconds
  message_retention_duration = "604800s"
  labels                     = local.labels

  # Never: a topic that is quiet for a month must not lose its backup.
  expiration_policy {
    ttl = ""
  }

  lifecycle {
    # What waits in it is lost with it, and a filter can't be changed in place: drain it and remove it by hand.
    prevent_destroy = true
  }

  depends_on = [google_pubsub_topic.backed_up]
}
