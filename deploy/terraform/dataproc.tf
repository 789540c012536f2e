# Backfills as Dataproc Serverless batches: only with -var dataproc_region=...

locals {
  dataproc = var.dataproc_region == "" ? toset([]) : toset(["batches"])
  jobs_key = var.jobs_kms_key_name != "" ? var.jobs_kms_key_name : var.kms_key_name
  driver_project_roles = [
    "roles/artifactregistry.reader",
    "roles/bigquery.jobUser",
    "roles/bigquery.readSessionUser",
    "roles/dataproc.worker",
    "roles/monitoring.viewer",
  ]
}

resource "google_project_service" "dataproc" {
  for_each           = var.dataproc_region == "" ? toset([]) : toset(["dataproc.googleapis.com", "storage.googleapis.com"])
  service            = each.key
  disable_on_destroy = false
}

# What the API and the batches tell each other. Refeed removes folders itself, REFEED_KEEP_JOB_DAYS after their job.
resource "google_storage_bucket" "jobs" {
  for_each                    = local.dataproc
  name                        = "${var.project}-refeed-jobs"
  location                    = var.dataproc_region
  labels                      = local.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # A folder's files are replaced every second: versions and soft deletes would keep each of them, and cost.
  versioning {
    enabled = false
  }
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  dynamic "encryption" {
    for_each = local.jobs_key == "" ? [] : [local.jobs_key]
    content {
      default_kms_key_name = encryption.value
    }
  }

  lifecycle {
    # Cloud Storage takes a key of the bucket's own location only, and so does BigQuery of its datasets'.
    precondition {
      condition     = local.jobs_key == "" || try(split("/", local.jobs_key)[3], "") == var.dataproc_region
      error_message = "The jobs' bucket lies in dataproc_region, so its key has to: set jobs_kms_key_name."
    }
  }

  depends_on = [google_project_service.dataproc]
}

# -- who batches run as

resource "google_service_account" "driver" {
  for_each     = local.dataproc
  account_id   = "refeed-driver"
  display_name = "Refeed driver"
  description  = "Runs backfills as Dataproc batches."
}

resource "google_project_iam_member" "driver" {
  for_each = var.dataproc_region == "" ? toset([]) : toset(local.driver_project_roles)
  project  = var.project
  role     = each.key
  member   = google_service_account.driver["batches"].member
}

resource "google_bigquery_dataset_iam_member" "driver" {
  for_each = var.dataproc_region == "" ? {} : merge(
    { for dataset in local.datasets.staging : dataset => "roles/bigquery.dataViewer" },
    { for dataset in local.datasets.reporting : dataset => var.policy_tags ? "roles/bigquery.dataOwner" : "roles/bigquery.dataEditor" },
    { for dataset in local.datasets.archive : dataset => "roles/bigquery.dataEditor" },
  )
  dataset_id = each.key
  role       = each.value
  member     = google_service_account.driver["batches"].member
}

# Merges read the columns that carry policy tags.
resource "google_project_iam_member" "driver_tagged" {
  for_each = var.policy_tags ? local.dataproc : toset([])
  project  = var.project
  role     = "roles/datacatalog.categoryFineGrainedReader"
  member   = google_service_account.driver[each.key].member
}

resource "google_pubsub_topic_iam_member" "driver" {
  for_each = var.dataproc_region == "" ? toset([]) : var.replay_topics
  topic    = each.key
  role     = "roles/pubsub.publisher"
  member   = google_service_account.driver["batches"].member
}

resource "google_storage_bucket_iam_member" "driver" {
  for_each = local.dataproc
  bucket   = google_storage_bucket.jobs[each.key].name
  role     = "roles/storage.objectUser"
  member   = google_service_account.driver[each.key].member
}

# -- what the API needs to launch them

resource "google_project_iam_member" "launcher" {
  for_each = local.dataproc
  project  = var.project
  role     = "roles/dataproc.editor"
  member   = google_service_account.component["api"].member
}

resource "google_service_account_iam_member" "launcher" {
  for_each           = local.dataproc
  service_account_id = google_service_account.driver[each.key].name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.component["api"].member
}

resource "google_storage_bucket_iam_member" "launcher" {
  for_each = local.dataproc
  bucket   = google_storage_bucket.jobs[each.key].name
  role     = "roles/storage.objectUser"
  member   = google_service_account.component["api"].member
}

output "dataproc_environment" {
  description = "Settings of the API, beside those of 'environment', when backfills run as batches."
  value = var.dataproc_region == "" ? {} : {
    REFEED_LAUNCHER                 = "dataproc"
    REFEED_JOBS_FOLDER              = "gs://${google_storage_bucket.jobs["batches"].name}/refeed"
    REFEED_DATAPROC_REGION          = var.dataproc_region
    REFEED_DATAPROC_IMAGE           = var.dataproc_image
    REFEED_DATAPROC_SERVICE_ACCOUNT = google_service_account.driver["batches"].email
    REFEED_DATAPROC_SUBNET          = var.dataproc_subnet
  }
}
