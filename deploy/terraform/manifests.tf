# The bucket that manifests are uploaded to, its notifications, and who may do what with them: docs/manifests.md.

variable "manifests_bucket" {
  description = "Name of the bucket for manifests, which is created here; empty: no uploads."
  type        = string
  default     = ""
}

variable "manifests_uploaders" {
  description = "Who may upload manifests, such as group:data@example.com: they act with the scopes of REFEED_MANIFESTS_SCOPES."
  type        = set(string)
  default     = []
}

locals {
  manifests = var.manifests_bucket == "" ? toset([]) : toset([var.manifests_bucket])
}

resource "google_project_service" "manifests" {
  for_each           = var.manifests_bucket == "" ? toset([]) : toset(["storage.googleapis.com"])
  service            = each.key
  disable_on_destroy = false
}

resource "google_storage_bucket" "manifests" {
  for_each                    = local.manifests
  name                        = each.key
  location                    = var.location
  labels                      = local.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = true
  }

  depends_on = [google_project_service.manifests]
}

resource "google_pubsub_topic" "manifests" {
  for_each = local.manifests
  name     = "refeed-manifests"
  labels   = local.labels

  depends_on = [google_project_service.needed]
}

# Cloud Storage publishes as an agent of its own, and checks that it may when the notification is created.
data "google_storage_project_service_account" "agent" {
  for_each = local.manifests

  depends_on = [google_project_service.manifests]
}

resource "google_pubsub_topic_iam_member" "manifests" {
  for_each = local.manifests
  topic    = google_pubsub_topic.manifests[each.key].name
  role     = "roles/pubsub.publisher"
  member   = data.google_storage_project_service_account.agent[each.key].member
}

resource "google_storage_notification" "manifests" {
  for_each       = local.manifests
  bucket         = google_storage_bucket.manifests[each.key].name
  topic          = google_pubsub_topic.manifests[each.key].id
  payload_format = "NONE"
  event_types    = ["OBJECT_FINALIZE", "OBJECT_DELETE", "OBJECT_ARCHIVE"]

  # Also after the bucket's own members: creating a notification may touch the bucket's policy.
  depends_on = [
    google_pubsub_topic_iam_member.manifests,
    google_storage_bucket_iam_member.manifests_api,
    google_storage_bucket_iam_member.manifests_uploaders,
  ]
}

resource "google_pubsub_subscription" "manifests" {
  for_each             = local.manifests
  name                 = "refeed-manifests"
  topic                = google_pubsub_topic.manifests[each.key].name
  ack_deadline_seconds = 10
  # A hint that is older is worth nothing: everything is listed every ten seconds.
  message_retention_duration = "600s"
  labels                     = local.labels

  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_subscription_iam_member" "manifests" {
  for_each     = local.manifests
  subscription = google_pubsub_subscription.manifests[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = google_service_account.component["api"].member
}

resource "google_storage_bucket_iam_member" "manifests_api" {
  for_each = local.manifests
  bucket   = google_storage_bucket.manifests[each.key].name
  role     = "roles/storage.objectViewer"
  member   = google_service_account.component["api"].member
}

resource "google_storage_bucket_iam_member" "manifests_uploaders" {
  for_each = var.manifests_bucket == "" ? toset([]) : var.manifests_uploaders
  bucket   = google_storage_bucket.manifests[var.manifests_bucket].name
  role     = "roles/storage.objectUser"
  member   = each.key
}
