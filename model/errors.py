"""Every error Refeed raises by name: one base, a stable code, what to do."""

from typing import Any, ClassVar


class RefeedError(Exception):
    """Refeed could not do what was asked.

    The first line of a subclass's docstring is its default message; ``code`` is stable and is what the
    HTTP API and ``--json`` output show; ``details`` holds JSON-ready facts for the reader.

    Example:
        >>> TopicNotFoundError(topic="orders").code
        'topic_not_found'
        >>> TopicNotFoundError("No topic orders in project shop.", topic="orders").details
        {'topic': 'orders'}
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str | None = None, **details: Any) -> None:
        first_line = (type(self).__doc__ or "").strip().splitlines()[0]
        super().__init__(message or first_line)
        self.details: dict[str, Any] = details

    @property
    def message(self) -> str:
        """The sentence a person reads."""
        return str(self.args[0])


class SettingsError(RefeedError):
    """A setting is missing or wrong."""

    code = "settings_invalid"


class InvalidNameError(RefeedError):
    """Pub/Sub does not accept the name."""

    code = "name_invalid"


class CredentialsMissingError(RefeedError):
    """No Google credentials were found; run 'gcloud auth application-default login'.

    One code whichever of Google's services asks for them; the class of each is one of that service's errors too.
    """

    code = "credentials_missing"


class KeyServiceError(RefeedError):
    """The key service does not decrypt a secret."""

    code = "key_service_error"


class PubSubError(RefeedError):
    """Pub/Sub answered with an error."""

    code = "pubsub_error"
    is_transient: ClassVar[bool] = False


class PubSubUnavailableError(PubSubError):
    """Pub/Sub does not answer."""

    code = "pubsub_unavailable"
    is_transient = True


class PubSubCredentialsError(CredentialsMissingError, PubSubError):
    """No Google credentials were found to call Pub/Sub with; run 'gcloud auth application-default login'."""


class TopicNotFoundError(PubSubError):
    """The topic does not exist."""

    code = "topic_not_found"


class TopicUnknownError(RefeedError):
    """Neither Pub/Sub nor the archive has the topic."""

    code = "topic_unknown"


class MessageNotFoundError(RefeedError):
    """The archive has no such message in the window."""

    code = "message_not_found"


class SourceNotFoundError(RefeedError):
    """The registry has no source of this name."""

    code = "source_not_found"


class SnapshotNotFoundError(PubSubError):
    """The snapshot, or the subscription that it should be restored to, does not exist."""

    code = "snapshot_not_found"


class SubscriptionNotFoundError(PubSubError):
    """The subscription does not exist."""

    code = "subscription_not_found"


class SubscriptionMismatchError(PubSubError):
    """The subscription exists, but a backup can't use it."""

    code = "subscription_mismatch"


class TopicBackupChangedError(RefeedError):
    """The topic's backup has changed since it was planned."""

    code = "topic_backup_changed"


class MessageRefusedError(PubSubError):
    """Pub/Sub does not take this message."""

    code = "message_refused"


class MonitoringMissingError(PubSubError):
    """Yielding to a subscription at Google needs google-cloud-monitoring: pip install 'refeed[monitoring]'."""

    code = "monitoring_missing"


class KinesisError(RefeedError):
    """Kinesis answered with an error."""

    code = "kinesis_error"


class KinesisUnavailableError(KinesisError):
    """Kinesis does not answer."""

    code = "kinesis_unavailable"


class KinesisThrottledError(KinesisUnavailableError):
    """Kinesis takes no further call of this kind at the moment."""

    code = "kinesis_throttled"


class KinesisStreamNotFoundError(KinesisError):
    """The Kinesis stream does not exist."""

    code = "kinesis_stream_not_found"


class AwsCredentialsError(KinesisError):
    """No AWS credentials were found: give the stream a key, or the process a role."""

    code = "aws_credentials"


class KinesisClientMissingError(KinesisError):
    """Reading Kinesis needs boto3: pip install 'refeed[kinesis]'."""

    code = "kinesis_missing"


class WarehouseError(RefeedError):
    """The warehouse answered with an error."""

    code = "warehouse_error"


class StorageFullError(WarehouseError):
    """The disk is full; free some space, nothing un-acked is lost."""

    code = "storage_full"


class MergeOvertakenError(WarehouseError):
    """Another merge changed the reporting table first; nothing was changed by this one."""

    code = "merge_overtaken"


class AuditFailedError(RefeedError):
    """The audits of a merge failed; the reporting table is unchanged."""

    code = "audit_failed"


class WarehouseUnavailableError(WarehouseError):
    """The warehouse does not answer; the call is tried again."""

    code = "warehouse_unavailable"


class TableNotReadyError(WarehouseUnavailableError):
    """The warehouse does not know a new table, or its new columns, yet; other tables can be written."""

    code = "table_not_ready"


class QuotaExceededError(WarehouseUnavailableError):
    """A quota of the warehouse is used up for the moment."""

    code = "quota_exceeded"


class WarehousePermissionError(WarehouseError):
    """The credentials may not do this in the warehouse."""

    code = "warehouse_permission_denied"


class WarehouseCredentialsError(CredentialsMissingError, WarehouseError):
    """No Google credentials were found to call BigQuery with; run 'gcloud auth application-default login'."""


class TableNotFoundError(WarehouseError):
    """The table does not exist; run 'refeed init'."""

    code = "table_not_found"


class TableMismatchError(WarehouseError):
    """The table exists with properties that differ and can't be changed."""

    code = "table_mismatch"


class CommitOutcomeUnknownError(WarehouseError):
    """The commit may or may not have happened; it must be looked up before anything else is done."""

    code = "commit_outcome_unknown"


class LeaseHeldError(RefeedError):
    """Another stream holds this subscription or this home."""

    code = "lease_held"


class LeaseLostError(RefeedError):
    """Another stream has taken this subscription over; this one must stop."""

    code = "lease_lost"


class CheckpointCorruptError(RefeedError):
    """A checkpoint file can't be read."""

    code = "checkpoint_corrupt"


class SnapshotRefusedError(RefeedError):
    """No snapshot can be made of the stream as it is now, or the stream can't be put to this snapshot."""

    code = "snapshot_refused"


class SnapshotCorruptError(RefeedError):
    """The files of a stream's snapshot are damaged or not whole."""

    code = "snapshot_corrupt"


class SnapshotFormatError(RefeedError):
    """A newer release made the snapshot, and this one can't read it."""

    code = "snapshot_format_unknown"


class FolderUnavailableError(RefeedError, OSError):
    """The storage that holds the jobs' folders does not answer, or refuses; REFEED_JOBS_FOLDER names it."""

    code = "folder_unavailable"


class FolderCredentialsError(CredentialsMissingError, FolderUnavailableError):
    """No Google credentials were found to reach the bucket with; run 'gcloud auth application-default login'."""


class QueryError(RefeedError):
    """The query failed while it ran."""

    code = "query_failed"


class QueryStoppedError(QueryError):
    """The query was stopped: its job is to stop, or its caller has left."""

    code = "query_stopped"


class QueryTooLargeError(QueryError):
    """The query needs more memory, disk or time than it may use."""

    code = "query_too_large"


class NothingSelectedError(QueryError):
    """The query selects nothing, and fail_if_empty was asked for."""

    code = "nothing_selected"


class SelectionTooLargeError(QueryError):
    """The query selects more than the backfill may publish."""

    code = "selection_too_large"


class OrderingColumnsError(QueryError):
    """The ordering by_key takes a query that gives ordering_key, publish_time, message_id."""

    code = "ordering_columns_missing"


class QueryDisagreesError(QueryError):
    """BigQuery reads the query differently from the gate; it was not run."""

    code = "query_disagrees"


class JobNotFoundError(RefeedError):
    """No such job."""

    code = "job_not_found"


class JobStateError(RefeedError):
    """The job is in a state that does not allow this."""

    code = "job_state_conflict"


class SelectionGoneError(JobStateError):
    """The job's files were removed, its selection among them: it can't run again; make a new one."""

    code = "selection_gone"


class ReleaseNotFoundError(RefeedError):
    """There is no such release in this home."""

    code = "release_not_found"


class StreamElsewhereError(RefeedError):
    """The stream's state is in another home than the one of the process that is asked."""

    code = "stream_elsewhere"


class ReleaseExistsError(RefeedError):
    """Another wheel is installed under the release's name."""

    code = "release_exists"


class ReleaseInvalidError(RefeedError):
    """The file is no wheel of Refeed that can be installed side by side."""

    code = "release_invalid"


class ReleaseInUseError(RefeedError):
    """Streams are of this release."""

    code = "release_in_use"


class EnvironmentFailedError(RefeedError):
    """The packages that a release needs can't be installed, or are gone."""

    code = "environment_failed"


class TemplateNotFoundError(RefeedError):
    """There is no such template."""

    code = "template_not_found"


class TemplateInvalidError(RefeedError):
    """The template has faults."""

    code = "template_invalid"


class ManifestInvalidError(RefeedError):
    """The manifest has faults."""

    code = "manifest_invalid"


class ManifestNotFoundError(RefeedError):
    """There is no manifest of this name."""

    code = "manifest_not_found"


class ManifestChangedError(RefeedError):
    """The manifest has changed since it was planned."""

    code = "manifest_changed"


class ManifestOwnedError(RefeedError):
    """The manifest's name belongs to another source."""

    code = "manifest_owned"


class RolloutNotFoundError(RefeedError):
    """There is no rollout of this id."""

    code = "rollout_not_found"


class RolloutInProgressError(RefeedError):
    """A rollout of the stream has not ended, and another change of it has to wait for that."""

    code = "rollout_in_progress"


class RolloutRefusedError(RefeedError):
    """The rollout can't begin: what runs is not what it says, or it asks for something that can't be."""

    code = "rollout_refused"


class RolloutStateError(RefeedError):
    """The rollout is in a state that does not allow this."""

    code = "rollout_state_conflict"


class JobChangedError(RefeedError):
    """The job has changed since it was read."""

    code = "job_changed"


class StreamNotFoundError(RefeedError):
    """No stream was ever launched under this name."""

    code = "stream_not_found"


class StreamExistsError(RefeedError):
    """A stream runs under this name, or does this work under another one."""

    code = "stream_exists"


class StreamStateError(RefeedError):
    """The stream is in a state that does not allow this."""

    code = "stream_state_conflict"


class StreamSnapshotNotFoundError(RefeedError):
    """No stream has a snapshot of this id."""

    code = "stream_snapshot_not_found"


class UpdateInProgressError(RefeedError):
    """The stream is being updated, and another change of it has to wait for the end of that."""

    code = "update_in_progress"


class UpdateNotFoundError(RefeedError):
    """No stream has an update of this id."""

    code = "update_not_found"


class SnapshotExpiredError(RefeedError):
    """Pub/Sub has dropped its part of the snapshot: the subscriptions can't go back to it."""

    code = "snapshot_expired"


class StreamChangedError(RefeedError):
    """The stream has changed since it was read."""

    code = "stream_changed"


class IdempotencyKeyReusedError(RefeedError):
    """This Idempotency-Key was used before with another request."""

    code = "idempotency_key_reused"


class PlanExpiredError(RefeedError):
    """The plan has expired, or there never was one with this id; plan again."""

    code = "plan_expired"


class PlanMismatchError(RefeedError):
    """The plan was made for another query, other parameters or another topic."""

    code = "plan_mismatch"


class BackfillOverlapsError(RefeedError):
    """Another backfill that has not ended replays some of the same messages to the same topic."""

    code = "backfill_overlaps"


class ReplayArchivedError(RefeedError):
    """A backup subscription of the target has no replay filter, so the replay would be archived again."""

    code = "replay_would_be_archived"


class TargetSubscriptionError(RefeedError):
    """The subscription's filter does not select the messages that are addressed to it."""

    code = "target_subscription_invalid"


class ApprovalRequiredError(RefeedError):
    """The backfill waits for somebody else's approval."""

    code = "approval_required"


class ApprovalNotFoundError(RefeedError):
    """There is no such approval."""

    code = "approval_not_found"


class ApprovalStateError(RefeedError):
    """The approval is decided already, or has expired."""

    code = "approval_state_conflict"


class StagingUnknownError(RefeedError):
    """No staging table is known for the backfill's target."""

    code = "staging_unknown"


class RevertIncompleteError(WarehouseError):
    """Some of the backfill's rows are deleted from staging, others are not yet: revert it again."""

    code = "revert_incomplete"


class AlreadyMergedError(RefeedError):
    """The backfill's rows are merged into the reporting table already."""

    code = "already_merged"


class IdempotencyInProgressError(RefeedError):
    """Another create with this Idempotency-Key is still under way; ask again in a moment."""

    code = "idempotency_in_progress"


class StoreError(RefeedError):
    """The job store answered with an error."""

    code = "store_error"


class StoreUnavailableError(StoreError):
    """The job store does not answer; running jobs go on."""

    code = "store_unavailable"


class MessagesFailedError(RefeedError):
    """Some of the selected messages could not be published."""

    code = "messages_failed"


class RowsLeftError(RefeedError):
    """Some of the selected rows have not been sent yet."""

    code = "rows_left"


class RequestInvalidError(RefeedError):
    """The request is not valid."""

    code = "request_invalid"


class BodyTooLargeError(RefeedError):
    """The request's body is too large."""

    code = "body_too_large"


class UnauthenticatedError(RefeedError):
    """Send a valid key or token as 'Authorization: Bearer ...'."""

    code = "unauthenticated"


class ForbiddenError(RefeedError):
    """The caller may not do this."""

    code = "forbidden"


class ProxyWithoutKeyError(ForbiddenError):
    """A proxy passed the call on, and the service has no keys to tell callers apart."""

    code = "proxy_without_key"


class SignInRefusedError(ForbiddenError):
    """The sign-in with the identity provider is refused."""

    code = "sign_in_refused"


class KeyNotFoundError(RefeedError):
    """No such key."""

    code = "key_not_found"


class RateLimitedError(RefeedError):
    """Too many calls; ``retry_after_seconds`` in the details says when the next one may come."""

    code = "rate_limited"


class ServiceBusyError(RefeedError):
    """The service is busy with other plans and counts; try again in a moment."""

    code = "service_busy"


class QueueFullError(RefeedError):
    """The collector holds as many events as it may; nothing of this request was taken."""

    code = "queue_full"


class IdentityUnavailableError(RefeedError):
    """The issuer's keys can't be fetched, so no token can be verified now; API keys still work."""

    code = "identity_unavailable"


class SnsUncheckedError(RefeedError):
    """A message of Amazon SNS can't be checked now, or its subscription not be confirmed; it has to come again."""

    code = "sns_unchecked"


class RequestTimeoutError(RefeedError):
    """The request's body did not arrive in time."""

    code = "request_timeout"


class AnswerTimeoutError(RefeedError):
    """The answer took too long; what was asked for may still happen."""

    code = "answer_timeout"


class LaunchError(RefeedError):
    """The job's driver could not be started."""

    code = "launch_failed"


class LaunchCredentialsError(CredentialsMissingError, LaunchError):
    """No Google credentials were found to start a batch with; run 'gcloud auth application-default login'."""


class JavaNotFoundError(RefeedError):
    """No Java 17 or 21 was found; set JAVA_HOME, or reinstall Refeed so that it brings its own."""

    code = "java_not_found"


class PortTakenError(RefeedError):
    """The port is taken; choose another one with --port."""

    code = "port_taken"


class HomeUnwritableError(RefeedError):
    """The home can't be written; choose another one with --home or REFEED_HOME."""

    code = "home_unwritable"


class InputError(RefeedError):
    """The command was given an argument or input that it does not accept."""

    code = "input_invalid"


class LineError(InputError):
    """A line of the input does not have the format that this command reads."""

    code = "line_invalid"


class ProcessEndedError(RefeedError):
    """A process that Refeed started has ended, or is not ready in time."""

    code = "process_ended"


class ApiUnavailableError(RefeedError):
    """Refeed's API does not answer; start it with 'refeed up' or 'refeed api', or set REFEED_API_URL."""

    code = "api_unavailable"


class RequestRefusedError(RefeedError):
    """Refeed's API refused the request."""

    code = "request_refused"


class DescriptorError(RefeedError):
    """The protobuf schema can't be used."""

    code = "descriptor_invalid"


class RegistryError(RefeedError):
    """The registry is not valid."""

    code = "registry_invalid"


class SchemaFullError(RefeedError):
    """A source without a schema has reached its limit of event types or fields."""

    code = "schema_full"


class RulesUnfitError(RegistryError):
    """The source's key, order or partition names a column that its staging table does not have."""

    code = "rules_unfit"


class EvolutionRefusedError(WarehouseError):
    """The table can't be changed to match the schema; nothing was changed."""

    code = "evolution_refused"
