"""One Kinesis stream: its shards, and the records of a shard from a place on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from model.errors import (
    AwsCredentialsError,
    KinesisClientMissingError,
    KinesisError,
    KinesisStreamNotFoundError,
    KinesisThrottledError,
    KinesisUnavailableError,
)

# A call returns "up to 10 MiB of data and up to 10,000 records".
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
MAX_RECORDS: Final = 10_000
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 30.0
_THROTTLED: Final = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
    }
)
_SERVER_FAULT: Final = 500
_TOKEN_EXPIRED: Final = "ExpiredNextTokenException"  # noqa: S105 - an error's name


@dataclass(frozen=True, slots=True)
class AwsKey:
    """An access key of AWS."""

    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, and the shards that it came from by splitting or merging, none or one or two.

    ``starting_number`` is that of its first possible record. A shard of a stream that was deleted and created
    again has an old shard's id, and another starting number.
    """

    id: str
    parents: tuple[str, ...]
    starting_number: str


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A record as Kinesis keeps it; ``arrived_at`` is when Kinesis had it, to the millisecond."""

    sequence_number: str
    partition_key: str
    data: bytes
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """What one read brought; ``is_end`` is whether the shard is closed and nothing comes after it.

    ``behind_milliseconds`` is how far the read is from the shard's newest record.
    """

    records: tuple[ShardRecord, ...]
    is_end: bool
    behind_milliseconds: int


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Where reading begins: at or after a record, at a moment, or with the oldest record where both are None."""

    sequence_number: str | None = None
    is_after: bool = True
    at: datetime | None = None


class KinesisStream:
    """The stream ``name`` in ``region``, for several threads.

    Without ``key`` boto3 finds credentials as AWS's other programs do. AWS_ENDPOINT_URL_KINESIS names another
    endpoint. Nothing is tried again here: how long to wait is the caller's decision.

    Raises:
        KinesisClientMissingError: boto3 is not installed.
        AwsCredentialsError: any call, when there are no credentials, or they are refused.
        KinesisStreamNotFoundError: any call, when the stream is not there.
        KinesisThrottledError: any call that is one too many at the moment.
        KinesisUnavailableError: any call, when Kinesis does not answer or fails.
        KinesisError: any call, when Kinesis refuses for another reason.
    """

    def __init__(self, name: str, *, region: str, key: AwsKey | None = None) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as exc:
            raise KinesisClientMissingError from exc
        self.name = name
        found = {} if key is None else {"aws_access_key_id": key.key_id, "aws_secret_access_key": key.secret}
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=50,
            retries={"total_max_attempts": 1},
        )
        with _our_errors(name):
            self._client: Any = boto3.session.Session(region_name=region).client("kinesis", config=config, **found)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def list_shards(self) -> list[Shard]:
        """Return all shards that still have records, and the open ones, in no order."""
        return self._list()[0]

    def read_created_at(self) -> datetime:
        """Return when the stream was created, to the second; it tells streams apart that had the same name.

        So does Amazon's own client, whose keys have the stream's name and its creation time in them:
        https://github.com/awslabs/amazon-kinesis-client/blob/master/docs/FAQ.md
        """
        with _our_errors(self.name):
            answer = self._client.describe_stream_summary(StreamName=self.name)
        created_at: datetime = answer["StreamDescriptionSummary"]["StreamCreationTimestamp"]
        return created_at.astimezone(UTC).replace(microsecond=0)

    def read_clock(self) -> datetime:
        """Return the time by Kinesis's clock, cut to the second; ours may be ahead of it."""
        return self._list(most=1)[1]

    def find_iterator(self, shard: str, start: ShardStart) -> str:
        """Return an iterator that begins at ``start``; it lives for five minutes."""
        wanted: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if start.sequence_number is not None:
            kind = "AFTER_SEQUENCE_NUMBER" if start.is_after else "AT_SEQUENCE_NUMBER"
            wanted = {"ShardIteratorType": kind, "StartingSequenceNumber": start.sequence_number}
        elif start.at is not None:
            wanted = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": start.at}
        with _our_errors(self.name):
            answer = self._client.get_shard_iterator(StreamName=self.name, ShardId=shard, **wanted)
        return str(answer["ShardIterator"])

    def read_records(self, iterator: str, limit: int) -> tuple[ShardBatch, str | None]:
        """Return what comes at ``iterator``, and the next iterator, None at the shard's end.

        Raises:
            IteratorExpiredError: it is older than five minutes.
        """
        with _our_errors(self.name):
            answer = self._client.get_records(ShardIterator=iterator, Limit=limit)
        following = answer.get("NextShardIterator")
        records = tuple(
            ShardRecord(
                each["SequenceNumber"],
                each["PartitionKey"],
                bytes(each["Data"]),
                each["ApproximateArrivalTimestamp"].astimezone(UTC),
            )
            for each in answer["Records"]
        )
        return ShardBatch(records, following is None, int(answer.get("MillisBehindLatest", 0))), following

    def _list(self, *, most: int | None = None) -> tuple[list[Shard], datetime]:
        found: list[Shard] = []
        wanted: dict[str, Any] = {"StreamName": self.name}
        if most is not None:
            wanted["MaxResults"] = most
        while True:
            with _our_errors(self.name):
                answer = self._client.list_shards(**wanted)
            found += [_shard_of(each) for each in answer["Shards"]]
            token = answer.get("NextToken")
            if token is None or most is not None:
                date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
                return found, parsedate_to_datetime(date).astimezone(UTC)
            # "NextToken unambiguously identifies the stream": both together are refused.
            # https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ListShards.html
            wanted = {"NextToken": token}


class ShardReader:
    """Reads one shard forward, for one thread at a time; an iterator that has expired is replaced on the way.

    "A shard iterator expires 5 minutes after it is returned to the requester."
    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetShardIterator.html
    """

    def __init__(self, stream: KinesisStream, shard: str, start: ShardStart) -> None:
        self.shard = shard
        self._stream = stream
        self._start = start
        self._iterator: str | None = None

    def read(self, limit: int = MAX_RECORDS) -> ShardBatch:
        """Return the next records, none where there are none at the moment; after the end, an end again."""
        if self._iterator is None:
            self._iterator = self._stream.find_iterator(self.shard, self._start)
        try:
            batch, following = self._stream.read_records(self._iterator, limit)
        except IteratorExpiredError:
            self._iterator = self._stream.find_iterator(self.shard, self._start)
            batch, following = self._stream.read_records(self._iterator, limit)
        if batch.records:
            self._start = ShardStart(batch.records[-1].sequence_number)
        self._iterator = following
        return batch


class IteratorExpiredError(KinesisError):
    """The shard iterator is older than five minutes."""


def _shard_of(found: dict[str, Any]) -> Shard:
    parents = (found.get("ParentShardId"), found.get("AdjacentParentShardId"))
    first = found["SequenceNumberRange"]["StartingSequenceNumber"]
    return Shard(found["ShardId"], tuple(parent for parent in parents if parent), first)


@contextmanager
def _our_errors(stream: str) -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as exc:
        raise AwsCredentialsError from exc
    except exceptions.ClientError as exc:
        raise _error_of(exc, stream) from exc
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as exc:
        raise KinesisUnavailableError(f"Kinesis does not answer: {type(exc).__name__}.") from exc
    except exceptions.BotoCoreError as exc:
        raise KinesisError(f"Kinesis can't be called: {exc}") from exc


def _error_of(exc: Any, stream: str) -> KinesisError:
    code, message = exc.response["Error"]["Code"], exc.response["Error"].get("Message", "")
    if code == "ExpiredIteratorException":
        return IteratorExpiredError()
    if code in _THROTTLED:
        return KinesisThrottledError(f"Kinesis throttles {stream}: {code}.")
    if code == "ResourceNotFoundException":
        return KinesisStreamNotFoundError(f"Kinesis has no such stream or shard: {message}", stream=stream)
    if code == _TOKEN_EXPIRED or exc.response["ResponseMetadata"]["HTTPStatusCode"] >= _SERVER_FAULT:
        return KinesisUnavailableError(f"Kinesis fails: {code}: {message}")
    if code in {"AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"}:
        return AwsCredentialsError(f"AWS refuses the credentials: {code}: {message}")
    return KinesisError(f"Kinesis refuses: {code}: {message}")
