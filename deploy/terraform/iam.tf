# One service account a component, with the least that docs/iam.md says it needs.

locals {
  components = {
    backup = "Writes every message to the archive."
    api    = "Plans backfills and runs them."
  }
  project_roles = {
    backup = ["roles/pubsub.viewer", "roles/bigquery.jobUser"]
    api    = ["roles/pubsub.viewer", "roles/bigquery.jobUser", "roles/bigquery.readSessionUser", "roles/monitoring.viewer"]
  }
  dataset_roles = {
    backup = "roles/bigquery.dataEditor"
    api    = "roles/bigquery.dataEditor"
  }
}

resource "google_service_account" "component" {
  for_each     = local.components
  account_id   = "refeed-${each.key}"
  display_name = "Refeed ${each.key}"
  description  = each.value
}

resource "google_project_iam_member" "component" {
  for_each = merge([
    for component, roles in local.project_roles : {
      for role in roles : "${component} ${role}" => { component = component, role = role }
    }
  ]...)
  project = var.project
  role    = each.value.role
  member  = google_service_account.component[each.value.component].member
}

resource "google_bigquery_dataset_iam_member" "component" {
  for_each   = local.dataset_roles
  dataset_id = google_bigquery_dataset.backup.dataset_id
  role       = each.value
  member     = google_service_account.component[each.key].member
}

resource "google_pubsub_subscription_iam_member" "backup" {
  for_each     = google_pubsub_subscription.backup
  subscription = each.value.name
  role         = "roles/pubsub.subscriber"
  member       = google_service_account.component["backup"].member
}

resource "google_pubsub_topic_iam_member" "replay" {
  for_each = var.replay_topics
  topic    = each.key
  role     = "roles/pubsub.publisher"
  member   = google_service_account.component["api"].member
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each           = var.workload_identity_namespace == "" ? {} : local.components
  service_account_id = google_service_account.component[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.workload_identity_namespace}/refeed-${each.key}]"
}
