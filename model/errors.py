"""Every error Refeed raises by name: one base, a stable code, what to do."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self


class RefeedError(Exception):
    """Refeed failed unexpectedly.

    The first line of a subclass's docstring is its default message; ``code`` is stable and is what the
    HTTP API and ``--json`` output show, its parent's where a subclass names none; ``details`` holds JSON-ready
    facts for the reader.

    Example:
        >>> TopicNotFoundError(topic="orders").code
        'topic_not_found'
        >>> TopicNotFoundError("No topic orders in project shop.", topic="orders").details
        {'topic': 'orders'}
    """

    code: ClassVar[str] = "internal"

    def __init_subclass__(cls, code: str | None = None) -> None:
        """Keep the code that the class statement gives."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(self, message: str | None = None, **details: Any) -> None:
        first_line = (type(self).__doc__ or "").strip().splitlines()[0]
        super().__init__(message or first_line)
        self.details: dict[str, Any] = details

    @property
    def message(self) -> str:
        """The sentence a person reads."""
        return str(self.args[0])


class SettingsError(RefeedError, code="settings_invalid"):
    """A setting is missing or wrong."""


class InvalidNameError(RefeedError, code="name_invalid"):
    """Pub/Sub does not accept the name."""


class CredentialsMissingError(RefeedError, code="credentials_missing"):
    """No Google credentials were found. Run 'gcloud auth application-default login'.

    One code whichever of Google's services asks for them; the class of each is one of that service's errors too.
    """


class KeyServiceError(RefeedError, code="key_service_error"):
    """The key service does not decrypt a secret."""


class PubSubError(RefeedError, code="pubsub_error"):
    """Pub/Sub answered with an error."""

    is_transient: ClassVar[bool] = False


class PubSubUnavailableError(PubSubError, code="pubsub_unavailable"):
    """Pub/Sub does not answer."""

    is_transient = True


class PubSubCredentialsError(CredentialsMissingError, PubSubError):
    """No Google credentials for Pub/Sub were found. Run 'gcloud auth application-default login'."""


class TopicNotFoundError(PubSubError, code="topic_not_found"):
    """The topic does not exist."""


class TopicUnreadError(PubSubError, code="topic_unread"):
    """The topic has no subscription, so Pub/Sub would not keep its messages."""


class TopicUnknownError(RefeedError, code="topic_unknown"):
    """The topic is not in Pub/Sub and not in the archive."""


class MessageNotFoundError(RefeedError, code="message_not_found"):
    """The archive has no such message in the window."""


class SourceNotFoundError(RefeedError, code="source_not_found"):
    """The registry has no source with this name."""


class SnapshotNotFoundError(PubSubError, code="snapshot_not_found"):
    """The snapshot or its subscription does not exist."""


class SubscriptionNotFoundError(PubSubError, code="subscription_not_found"):
    """The subscription does not exist."""


class SubscriptionMismatchError(PubSubError, code="subscription_mismatch"):
    """The subscription exists, but a backup can't use it."""


class TopicBackupChangedError(RefeedError, code="topic_backup_changed"):
    """The topic's backup has changed since the plan was made."""


class MessageRefusedError(PubSubError, code="message_refused"):
    """Pub/Sub refuses this message."""


class MonitoringMissingError(PubSubError, code="monitoring_missing"):
    """yield_to on Google Cloud needs google-cloud-monitoring: pip install 'refeed[monitoring]'."""


class KinesisError(RefeedError, code="kinesis_error"):
    """Kinesis answered with an error."""


class KinesisUnavailableError(KinesisError, code="kinesis_unavailable"):
    """Kinesis does not answer."""


class KinesisThrottledError(KinesisUnavailableError, code="kinesis_throttled"):
    """Kinesis refuses further reads for now."""


class KinesisStreamNotFoundError(KinesisError, code="kinesis_stream_not_found"):
    """The Kinesis stream does not exist."""


class KinesisStreamRecreatedError(KinesisError, code="kinesis_stream_recreated"):
    """The Kinesis stream was deleted and created again, so the saved positions are not valid."""


class AwsCredentialsError(KinesisError, code="aws_credentials"):
    """No AWS credentials were found. Give the stream an access key, or give its process a role."""


class KinesisClientMissingError(KinesisError, code="kinesis_missing"):
    """To read Kinesis, Refeed needs the package boto3. Run 'pip install refeed[kinesis]'."""


class WarehouseError(RefeedError, code="warehouse_error"):
    """The warehouse answered with an error."""


class StorageFullError(WarehouseError, code="storage_full"):
    """The disk is full. Free some space. Unacknowledged messages are not lost."""


class MergeOvertakenError(WarehouseError, code="merge_overtaken"):
    """Another merge changed the reporting table first. This merge changed nothing."""


class AuditFailedError(RefeedError, code="audit_failed"):
    """The audits of a merge failed. The reporting table did not change."""


class WarehouseUnavailableError(WarehouseError, code="warehouse_unavailable"):
    """The warehouse does not answer. Refeed tries the call again."""


class TableNotReadyError(WarehouseUnavailableError, code="table_not_ready"):
    """The warehouse can't write to a new table or column yet. Other tables can be written."""


class QuotaExceededError(WarehouseUnavailableError, code="quota_exceeded"):
    """A quota of the warehouse is used up."""


class WarehousePermissionError(WarehouseError, code="warehouse_permission_denied"):
    """The warehouse does not allow this action with Refeed's credentials."""


class WarehouseCredentialsError(CredentialsMissingError, WarehouseError):
    """No Google credentials for BigQuery were found. Run 'gcloud auth application-default login'."""


class TableNotFoundError(WarehouseError, code="table_not_found"):
    """The table does not exist. Run 'refeed init'."""


class TableMismatchError(WarehouseError, code="table_mismatch"):
    """The existing table differs from the wanted table in properties that can't be changed."""


class CommitOutcomeUnknownError(WarehouseError, code="commit_outcome_unknown"):
    """The outcome of the commit is unknown. Find out whether the commit succeeded before you continue."""


class LeaseHeldError(RefeedError, code="lease_held"):
    """Another stream uses this subscription or this home."""


class LeaseLostError(RefeedError, code="lease_lost"):
    """Another stream has taken over this subscription. This stream must stop."""


class CheckpointCorruptError(RefeedError, code="checkpoint_corrupt"):
    """A checkpoint file can't be read."""


class SnapshotRefusedError(RefeedError, code="snapshot_refused"):
    """The stream's state does not allow a snapshot, or the stream can't return to this snapshot."""


class SnapshotCorruptError(RefeedError, code="snapshot_corrupt"):
    """The files of the stream's snapshot are damaged or incomplete."""


class SnapshotFormatError(RefeedError, code="snapshot_format_unknown"):
    """A newer release made the snapshot. This release can't read the snapshot."""


class FolderUnavailableError(RefeedError, OSError, code="folder_unavailable"):
    """The folder or bucket of REFEED_JOBS_FOLDER does not answer, or refuses access."""


class FolderCredentialsError(CredentialsMissingError, FolderUnavailableError):
    """No credentials for the bucket were found."""


class QueryError(RefeedError, code="query_failed"):
    """The query failed while it ran."""


class QueryStoppedError(QueryError, code="query_stopped"):
    """The query was stopped, because its job was cancelled or its caller disconnected."""


class QueryTooLargeError(QueryError, code="query_too_large"):
    """The query needs more memory, disk space or time than the limit allows."""


class NothingSelectedError(QueryError, code="nothing_selected"):
    """The query selects nothing, and the request has fail_if_empty."""


class SelectionTooLargeError(QueryError, code="selection_too_large"):
    """The query selects more than the backfill may publish."""


class OrderingColumnsError(QueryError, code="ordering_columns_missing"):
    """The ordering by_key needs the columns ordering_key, publish_time and message_id."""


class QueryDisagreesError(QueryError, code="query_disagrees"):
    """BigQuery and the SQL gate (Refeed's check of queries) read the query differently. The query did not run."""


class JobNotFoundError(RefeedError, code="job_not_found"):
    """There is no such job."""


class JobUnreadableError(RefeedError, code="job_unreadable"):
    """The stored request of the job can't be read. Another release of Refeed may have written it."""


class JobStateError(RefeedError, code="job_state_conflict"):
    """The job's state does not allow this action."""


class StepTimeoutError(RefeedError, code="step_timeout"):
    """A step of the job did not end in time, even after several attempts."""


class SelectionGoneError(JobStateError, code="selection_gone"):
    """The job's files were removed, so the job can't run again. Create a new job."""


class ReleaseNotFoundError(RefeedError, code="release_not_found"):
    """There is no such release in this home."""


class StreamElsewhereError(RefeedError, code="stream_elsewhere"):
    """The stream's state is in another home, so this process can't read the state."""


class ReleaseExistsError(RefeedError, code="release_exists"):
    """Another wheel is already installed under this name."""


class ReleaseInvalidError(RefeedError, code="release_invalid"):
    """The file is not a wheel of Refeed, or the wheel can't be installed as a release."""


class ReleaseInUseError(RefeedError, code="release_in_use"):
    """Streams run with this release."""


class EnvironmentFailedError(RefeedError, code="environment_failed"):
    """The packages of the release can't be installed, or they were deleted."""


class ManifestInvalidError(RefeedError, code="manifest_invalid"):
    """The manifest has faults."""


class ManifestNotFoundError(RefeedError, code="manifest_not_found"):
    """There is no manifest with this name."""


class ManifestChangedError(RefeedError, code="manifest_changed"):
    """The manifest has changed since it was read or planned."""


class ManifestOwnedError(RefeedError, code="manifest_owned"):
    """The manifest's name belongs to another owner."""


class RolloutRefusedError(RefeedError, code="rollout_refused"):
    """The rollout can't begin: ``from`` does not match the stream, or the stream can't do this rollout."""


class JobChangedError(RefeedError, code="job_changed"):
    """The job has changed since it was read."""


class StreamNotFoundError(RefeedError, code="stream_not_found"):
    """No stream was ever launched under this name."""


class StreamExistsError(RefeedError, code="stream_exists"):
    """A running stream has this name, or does the same work under another name."""


class StreamStateError(RefeedError, code="stream_state_conflict"):
    """The stream's state does not allow this action."""


class StreamSnapshotNotFoundError(RefeedError, code="stream_snapshot_not_found"):
    """No stream has a snapshot with this id."""


class UpdateInProgressError(RefeedError, code="update_in_progress"):
    """The stream is being updated. Until the update ends, the stream can't be changed."""


class UpdateNotFoundError(RefeedError, code="update_not_found"):
    """No stream has an update with this id."""


class SnapshotExpiredError(RefeedError, code="snapshot_expired"):
    """Pub/Sub has deleted the Pub/Sub snapshots, so the subscriptions can't return to the snapshot."""


class StreamChangedError(RefeedError, code="stream_changed"):
    """The stream has changed since it was read."""


class IdempotencyKeyReusedError(RefeedError, code="idempotency_key_reused"):
    """This Idempotency-Key was used before with another request."""


class PlanExpiredError(RefeedError, code="plan_expired"):
    """There is no plan with this id, or the plan has expired. Plan again."""


class PlanMismatchError(RefeedError, code="plan_mismatch"):
    """The plan is of another query, another topic or other parameters. Ages and open ends move with the clock."""


class BackfillOverlapsError(RefeedError, code="backfill_overlaps"):
    """Another backfill that has not ended replays some of the same messages to the same topic."""


class ReplayArchivedError(RefeedError, code="replay_would_be_archived"):
    """A backup subscription of the target topic does not exclude replays, so they would be archived again."""


class TargetSubscriptionError(RefeedError, code="target_subscription_invalid"):
    """The filter does not select messages that have the subscription's id in their attribute refeed_target."""


class ApprovalRequiredError(RefeedError, code="approval_required"):
    """The backfill waits for the approval of another person."""


class StagingUnknownError(RefeedError, code="staging_unknown"):
    """Refeed knows no staging table for the backfill's target topic."""


class RevertIncompleteError(WarehouseError, code="revert_incomplete"):
    """Only some of the backfill's rows were deleted from staging. Revert the backfill again."""


class AlreadyMergedError(RefeedError, code="already_merged"):
    """The backfill's rows were already merged into the reporting table."""


class IdempotencyInProgressError(RefeedError, code="idempotency_in_progress"):
    """The first call with this Idempotency-Key is still in progress. Try again in a moment."""


class StoreError(RefeedError, code="store_error"):
    """The job store answered with an error."""


class StoreUnavailableError(StoreError, code="store_unavailable"):
    """The job store does not answer. Running jobs continue."""


class MessagesFailedError(RefeedError, code="messages_failed"):
    """Some selected messages could not be published."""


class RowsLeftError(RefeedError, code="rows_left"):
    """Some selected messages were not sent yet."""


def fault_at(pointer: str, code: str, message: str, **more: Any) -> dict[str, Any]:
    """Return a fault as an error's ``errors`` list it; ``pointer`` is its place, empty for the whole request.

    Example:
        >>> fault_at("/topic", "field_missing", "topic is missing.")
        {'code': 'field_missing', 'message': 'topic is missing.', 'pointer': '/topic'}
    """
    return {"code": code, "message": message, "pointer": pointer, **more}


class RequestInvalidError(RefeedError, code="request_invalid"):
    """The request is not valid."""

    @classmethod
    def of(cls, code: str, message: str, pointer: str = "", **details: Any) -> Self:
        """Return the error of one fault; ``pointer`` is its place, empty for the whole request or body."""
        return cls(message, errors=[fault_at(pointer, code, message)], **details)

    @classmethod
    def of_all(cls, errors: Sequence[Mapping[str, Any]]) -> Self:
        """Return the error of several faults; its message is all of theirs."""
        return cls(" ".join(error["message"] for error in errors), errors=errors)


class BodyTooLargeError(RefeedError, code="body_too_large"):
    """The request's body is too large."""


class UnauthenticatedError(RefeedError, code="unauthenticated"):
    """The call has no valid key or token. Send a key as 'Authorization: Bearer ...'."""


class ForbiddenError(RefeedError, code="forbidden"):
    """The caller is not allowed to do this."""


class ProxyWithoutKeyError(ForbiddenError, code="proxy_without_key"):
    """The call came through a proxy, and the service has no keys. Create a key."""


class SignInRefusedError(ForbiddenError, code="sign_in_refused"):
    """The sign-in with the identity provider was refused."""


class KeyNotFoundError(RefeedError, code="key_not_found"):
    """There is no such key."""


class RateLimitedError(RefeedError, code="rate_limited"):
    """Too many calls. Try again after ``retry_after_seconds``."""


class ServiceBusyError(RefeedError, code="service_busy"):
    """The service is busy with other plans and counts. Try again in a moment."""


class QueueFullError(RefeedError, code="queue_full"):
    """The collector's queue is full. No event of this request was accepted."""


class IdentityUnavailableError(RefeedError, code="identity_unavailable"):
    """The issuer's keys can't be fetched, so no token can be verified. API keys still work."""


class SnsUncheckedError(RefeedError, code="sns_unchecked"):
    """The signature of an SNS message can't be checked now. SNS sends the message again."""


class RequestTimeoutError(RefeedError, code="request_timeout"):
    """The request's body did not arrive in time."""


class AnswerTimeoutError(RefeedError, code="answer_timeout"):
    """The answer took too long. The requested action may still happen."""


class LaunchError(RefeedError, code="launch_failed"):
    """The job's driver could not be started."""


class LaunchCredentialsError(CredentialsMissingError, LaunchError):
    """No Google credentials for Dataproc were found. Run 'gcloud auth application-default login'."""


class JavaNotFoundError(RefeedError, code="java_not_found"):
    """No Java 17 or 21 was found. Set JAVA_HOME, or reinstall Refeed with its own Java."""


class PortTakenError(RefeedError, code="port_taken"):
    """Another process uses the port. Choose another port with --port."""


class HomeUnwritableError(RefeedError, code="home_unwritable"):
    """Refeed can't write to its home. Choose another home with --home or REFEED_HOME."""


class OutputUnwritableError(RefeedError, code="output_unwritable"):
    """The command can't write to stdout. Connect stdout to an open terminal, file or pipe."""


class InputError(RefeedError, code="input_invalid"):
    """The command does not accept an argument or the input."""


class LineError(InputError, code="line_invalid"):
    """A line of the input does not have the expected format."""


class ProcessEndedError(RefeedError, code="process_ended"):
    """A process that Refeed started has ended, or did not become ready in time."""


class ApiUnavailableError(RefeedError, code="api_unavailable"):
    """Refeed's API does not answer. Start it with 'refeed up' or 'refeed api', or set REFEED_API_URL."""


class ApiUnknownError(ApiUnavailableError, LookupError, code="api_unknown"):
    """The server at REFEED_API_URL is not Refeed's API. Set REFEED_API_URL to the API's address.

    A template that looks for a member which an answer may lack takes it for the LookupError that it is.
    """


class RequestRefusedError(RefeedError, code="request_refused"):
    """Refeed's API refused the request."""


class DescriptorError(RefeedError, code="descriptor_invalid"):
    """The protobuf schema can't be used."""


class RegistryError(RefeedError, code="registry_invalid"):
    """The registry is not valid."""


class SchemaFullError(RefeedError, code="schema_full"):
    """An inferred source has reached its limit of event types or fields."""


class RulesUnfitError(RegistryError, code="rules_unfit"):
    """The source's key, order or partition does not fit its staging table."""


class EvolutionRefusedError(WarehouseError, code="evolution_refused"):
    """The table can't be changed to match the schema. Nothing changed."""
