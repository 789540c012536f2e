variable "project" {
  description = "Google Cloud project that everything lives in."
  type        = string
}

variable "location" {
  description = "Location of the dataset, such as EU or europe-north1. It can't be changed later."
  type        = string
  default     = "EU"
}

variable "dataset" {
  description = "Dataset of the archive."
  type        = string
  default     = "backup"
}

variable "partitioning" {
  description = "Size of the archive's partitions: DAY or HOUR. It can't be changed later."
  type        = string
  default     = "DAY"

  validation {
    condition     = contains(["DAY", "HOUR"], var.partitioning)
    error_message = "partitioning is DAY or HOUR."
  }
}

variable "retention_days" {
  description = "Days after which the archive's partitions go; 0 keeps them for ever."
  type        = number
  default     = 0
}

variable "require_partition_filter" {
  description = "Whether a query of the archive must name its partitions."
  type        = bool
  default     = true
}

variable "staging_datasets" {
  description = "Datasets that the pipeline writes staging tables to, as sources.yaml names them."
  type        = set(string)
  default     = ["staging"]
}

variable "reporting_datasets" {
  description = "Datasets that merges write reporting tables to, as sources.yaml names them."
  type        = set(string)
  default     = ["reporting"]
}

variable "policy_tags" {
  description = "Whether schemas name policy tags: the pipeline and merges set them, and merges read what they protect."
  type        = bool
  default     = false
}

variable "merge_at" {
  description = "Time of day, in UTC, at which the API merges staging into reporting; off is never."
  type        = string
  default     = "00:15"
}

variable "kms_key_name" {
  description = "Cloud KMS key of datasets and tables (CMEK), in their location: us for US, europe for EU; empty: Google's own."
  type        = string
  default     = ""
}

variable "jobs_kms_key_name" {
  description = "Cloud KMS key of the jobs' bucket, in dataproc_region; empty: kms_key_name, which then has to be of that region."
  type        = string
  default     = ""
}

variable "backups" {
  description = <<-EOT
    Topics to back up, and the filter of each one's backup subscription. The filter holds a token made of the
    deployment's secret, so Refeed prints this map: refeed attach --terraform TOPIC... > backups.auto.tfvars.json
  EOT
  type        = map(string)
  default     = {}
}

variable "create_topics" {
  description = "Whether the topics of backups are created here too; else they must be there."
  type        = bool
  default     = false
}

variable "replay_topics" {
  description = "Topics that backfills may publish to."
  type        = set(string)
  default     = []
}

variable "collector_topics" {
  description = "Topics that collectors publish events to; REFEED_COLLECTOR_TOPICS."
  type        = set(string)
  default     = []
}

variable "ack_deadline_seconds" {
  description = "Ack deadline of the backup subscriptions; REFEED_ACK_DEADLINE_SECONDS."
  type        = number
  default     = 60
}

variable "workload_identity_namespace" {
  description = "Kubernetes namespace whose service accounts act as ours (GKE workload identity); empty: none."
  type        = string
  default     = ""
}

variable "labels" {
  description = "Labels of every resource that takes them, for the bill; app=refeed is always one."
  type        = map(string)
  default     = {}
}

variable "dataproc_region" {
  description = "Region of Dataproc batches and of the jobs' bucket, such as europe-west1; empty: backfills run elsewhere."
  type        = string
  default     = ""
}

variable "dataproc_image" {
  description = "Image of the batches: the Dockerfile's target dataproc, in Artifact Registry."
  type        = string
  default     = ""
}

variable "dataproc_subnet" {
  description = "Subnet of the batches, with Private Google Access; empty: the default network's."
  type        = string
  default     = ""
}
