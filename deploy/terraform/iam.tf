# One service account a component, with the least that docs/iam.md says it needs.

locals {
  # A test compares it with docs/iam.md and with the permissions that the components' calls need.
  components = jsondecode(file("${path.module}/roles.json"))
  # Datasets by what they hold: several may hold staging, or reporting. Those of rows may be the archive's own.
  row_datasets = { for name, dataset in google_bigquery_dataset.rows : name => dataset.dataset_id }
  datasets = {
    archive   = [google_bigquery_dataset.backup.dataset_id]
    staging   = [for name in var.staging_datasets : lookup(local.row_datasets, name, google_bigquery_dataset.backup.dataset_id)]
    reporting = [for name in var.reporting_datasets : lookup(local.row_datasets, name, google_bigquery_dataset.backup.dataset_id)]
  }
  # A table whose columns carry policy tags is changed by its dataset's owners only (bigquery.tables.setCategory).
  tagged_datasets = var.policy_tags ? ["pipeline staging", "agent staging", "api reporting"] : []
  dataset_roles = flatten([
    for component, needs in local.components : [
      for kind, role in needs.datasets : [
        for dataset in local.datasets[kind] : {
          component = component
          dataset   = dataset
          role      = contains(local.tagged_datasets, "${component} ${kind}") ? "roles/bigquery.dataOwner" : role
        }
      ]
    ]
  ])
}

resource "google_service_account" "component" {
  for_each     = local.components
  account_id   = "refeed-${each.key}"
  display_name = "Refeed ${each.key}"
  description  = each.value.does
}

resource "google_project_iam_member" "component" {
  for_each = merge([
    for component, needs in local.components : {
      for role in needs.project : "${component} ${role}" => { component = component, role = role }
    }
  ]...)
  project = var.project
  role    = each.value.role
  member  = google_service_account.component[each.value.component].member
}

resource "google_bigquery_dataset_iam_member" "component" {
  for_each   = { for grant in local.dataset_roles : "${grant.component} ${grant.dataset} ${grant.role}" => grant... }
  dataset_id = each.value[0].dataset
  role       = each.value[0].role
  member     = google_service_account.component[each.value[0].component].member
}

# Merges read the columns that carry policy tags.
resource "google_project_iam_member" "tagged" {
  for_each = var.policy_tags ? toset(["api"]) : toset([])
  project  = var.project
  role     = "roles/datacatalog.categoryFineGrainedReader"
  member   = google_service_account.component[each.key].member
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

resource "google_pubsub_topic_iam_member" "collected" {
  for_each = var.collector_topics
  topic    = each.key
  role     = "roles/pubsub.publisher"
  member   = google_service_account.component["collector"].member
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each           = var.workload_identity_namespace == "" ? toset([]) : toset(keys(local.components))
  service_account_id = google_service_account.component[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.workload_identity_namespace}/refeed-${each.key}]"
}
