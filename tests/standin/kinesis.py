"""Kinesis as tests have it: kinesalite, from npm, behind a proxy that fails as a test orders."""

import json
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Self

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from cli.processes import free_port, is_listening
from tests.npm import install_packages
from tests.waiting import wait_until
from tests.worlds.http import Answer, Call, answering

# kinesalite answers AT_TIMESTAMP only where a record fits: without one it says nothing, for ever.
_SILENT_SECONDS = 0.4
_STARTS = 3


class Kinesis:
    """A kinesalite process, and before it a proxy at ``endpoint``.

    ``fail(action, error)`` lets the next calls of an action fail: with an error of the API, ``InternalFailure``
    (500), ``drop`` (the connection ends without an answer) or ``lost`` (done, and the answer is lost).
    """

    def __init__(self, *, shard_limit: int = 50) -> None:
        options = ["--createStreamMs", "5", "--updateStreamMs", "20", "--shardLimit", str(shard_limit)]
        self._command = ["node", str(install_packages() / "node_modules" / "kinesalite" / "cli.js"), *options]
        self._faults: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self._http = answering(self._serve)

    def _serve(self, call: Call) -> Answer | None:
        answer = self.answer(call.headers["x-amz-target"].rpartition(".")[2], call.body, dict(call.headers))
        return answer and Answer(*answer, {"Content-Type": "application/x-amz-json-1.1"})

    def __enter__(self) -> Self:
        self.endpoint = self._http.__enter__()
        # A port that was free may be another server's by the time that node listens: then node ends.
        assert any(self._start() for _ in range(_STARTS)), "kinesalite has ended"
        return self

    def _start(self) -> bool:
        """Start kinesalite at a free port, and return whether it answers there."""
        self._port = free_port()
        command = [*self._command, "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = boto3.client(
            "kinesis",
            endpoint_url=f"http://127.0.0.1:{self._port}",
            region_name="us-east-1",
            aws_access_key_id="AKIATEST",
            aws_secret_access_key="secret",
        )
        wait_until(lambda: self._process.poll() is not None or self._answers(), "kinesalite answers")
        return self._process.poll() is None

    def _answers(self) -> bool:
        """Whether a server of Kinesis is at the port, and not whatever else."""
        if not is_listening(f"127.0.0.1:{self._port}"):
            return False
        with suppress(BotoCoreError, ClientError, ValueError):
            return "StreamNames" in self.client.list_streams()
        return False

    def __exit__(self, *raised: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait(10)
        self._http.__exit__(*raised)

    @property
    def environment(self) -> dict[str, str]:
        """Where boto3 finds it, and a key that it takes."""
        return {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def create(self, stream: str, shards: int = 1) -> str:
        self.client.create_stream(StreamName=stream, ShardCount=shards)
        self.wait_until_active(stream)
        return stream

    def delete(self, stream: str) -> None:
        self.client.delete_stream(StreamName=stream)
        wait_until(lambda: stream not in self.client.list_streams()["StreamNames"], "the stream is gone")

    def put(self, stream: str, records: list[tuple[str, bytes]]) -> None:
        """Put records of (partition key, data)."""
        for start in range(0, len(records), 500):
            entries = [{"PartitionKey": key, "Data": data} for key, data in records[start : start + 500]]
            assert self.client.put_records(StreamName=stream, Records=entries)["FailedRecordCount"] == 0

    def split(self, stream: str, shard: str = "") -> None:
        """Split a shard in the middle, the first open one unless one is named."""
        shards = self.client.list_shards(StreamName=stream)["Shards"]
        found = next(
            each
            for each in shards
            if each["ShardId"] == shard
            or (not shard and "EndingSequenceNumber" not in each["SequenceNumberRange"])
        )
        low, high = (int(found["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
        self.client.split_shard(
            StreamName=stream, ShardToSplit=found["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )
        self.wait_until_active(stream)

    def merge(self, stream: str) -> None:
        """Merge the two open shards of the lowest hash keys."""
        found = [
            each
            for each in self.client.list_shards(StreamName=stream)["Shards"]
            if "EndingSequenceNumber" not in each["SequenceNumberRange"]
        ]
        found.sort(key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))
        shards = [each["ShardId"] for each in found]
        self.client.merge_shards(StreamName=stream, ShardToMerge=shards[0], AdjacentShardToMerge=shards[1])
        self.wait_until_active(stream)

    def wait_until_active(self, stream: str) -> None:
        describe = self.client.describe_stream
        wait_until(
            lambda: describe(StreamName=stream)["StreamDescription"]["StreamStatus"] == "ACTIVE",
            "the stream is active",
        )

    def fail(self, action: str, *errors: str) -> None:
        with self._lock:
            self._faults += [(action, error) for error in errors]

    def answer(self, action: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes] | None:
        with self._lock:
            self.calls[action] += 1
            fault = next((each for each in self._faults if each[0] == action), None)
            if fault is not None:
                self._faults.remove(fault)
        error = "" if fault is None else fault[1]
        if error == "drop":
            return None
        if error and error != "lost":
            status = 500 if error == "InternalFailure" else 400
            return status, json.dumps({"__type": error, "message": "ordered by the test"}).encode()
        latest = None
        if action == "GetShardIterator" and json.loads(body)["ShardIteratorType"] == "AT_TIMESTAMP":
            # Asked for before, so that nothing that comes meanwhile is passed over.
            wanted = json.loads(body)
            del wanted["Timestamp"]
            latest = self._forward(json.dumps({**wanted, "ShardIteratorType": "LATEST"}).encode(), headers)
        try:
            found = self._forward(body, headers, _SILENT_SECONDS if latest else 30)
        except TimeoutError:
            if latest is None:
                return None
            found = latest
        except (OSError, HTTPException):
            return None
        return None if error == "lost" else found

    def _forward(self, body: bytes, headers: dict[str, str], seconds: float = 30) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=seconds)
        try:
            kept = {k: v for k, v in headers.items() if k.lower() not in ("content-length", "connection", "host")}
            connection.request("POST", "/", body, kept)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
