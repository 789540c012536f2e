# A lake in a bucket in place of BigQuery: docs/deploy.md#a-lake-in-a-bucket. Only with -var lake_bucket=...

variable "lake_bucket" {
  description = "Name of the bucket for the lake, the jobs' files and the registry, which is created here; empty: the tables are in BigQuery."
  type        = string
  default     = ""
}

locals {
  lake = var.lake_bucket == "" ? toset([]) : toset([var.lake_bucket])
  # Streams write tables; the API reads, merges and compacts them.
  lake_writers = var.lake_bucket == "" ? toset([]) : toset(["agent", "api", "backup", "pipeline"])
}

resource "google_project_service" "lake" {
  for_each           = var.lake_bucket == "" ? toset([]) : toset(["storage.googleapis.com"])
  service            = each.key
  disable_on_destroy = false
}

resource "google_storage_bucket" "lake" {
  for_each                    = local.lake
  name                        = each.key
  location                    = var.location
  labels                      = local.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # Compaction replaces files, and 'refeed archive vacuum' deletes them: versions and soft deletes would keep each of them.
  versioning {
    enabled = false
  }
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  # No rule deletes objects by their age: a table's oldest file may be one that every query reads.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key_name == "" ? [] : [var.kms_key_name]
    content {
      default_kms_key_name = encryption.value
    }
  }

  depends_on = [google_project_service.lake]
}

resource "google_storage_bucket_iam_member" "lake" {
  for_each = local.lake_writers
  bucket   = google_storage_bucket.lake[var.lake_bucket].name
  role     = "roles/storage.objectUser"
  member   = google_service_account.component[each.key].member
}

output "lake_environment" {
  description = "Settings of every Refeed process, in place of those of 'environment' with the same names, for a lake in the bucket."
  value = var.lake_bucket == "" ? {} : {
    REFEED_WAREHOUSE         = "lake"
    REFEED_LAKE              = "gs://${google_storage_bucket.lake[var.lake_bucket].name}/lake"
    REFEED_JOBS_FOLDER       = "gs://${google_storage_bucket.lake[var.lake_bucket].name}/jobs"
    REFEED_REGISTRY          = "gs://${google_storage_bucket.lake[var.lake_bucket].name}/registry"
    REFEED_ARCHIVE_TABLE     = "backup.messages"
    REFEED_DEAD_LETTER_TABLE = "backup.dead_letters"
  }
}
