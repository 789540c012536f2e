"""The limit of a backup: one process that pulls raw, builds Arrow, commits to the same lake and acknowledges.

It promises nothing: no journal, no ids kept, no lease. Argument: the number of the process, one a core.
"""

import os
import sys
from collections import deque

import grpc
import pyarrow as pa

from bench.yard import IN_FLIGHT, LIMIT_COMMIT_BYTES, SUBSCRIPTION, TOPIC
from connectors.lake.archive import LakeArchive
from connectors.pubsub.acks import acknowledge
from connectors.pubsub.client import PubSub
from connectors.pubsub.pull import decode_pull_response
from connectors.wire import bytes_field
from model.archive import Attempt
from model.settings import read_settings

# When nothing comes for so long, what is there is committed.
_IDLE_SECONDS = 0.2
_MAX_MESSAGES = b"\x18\xe8\x07"


def main() -> None:
    settings, name = read_settings(os.environ), f"limit-{sys.argv[1]}"
    archive = LakeArchive(settings.lake, settings.archive_table)
    archive.create()
    epoch = archive.take_lease(name)
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        path = pubsub.subscription_path(SUBSCRIPTION)
        request = bytes_field(1, path.encode()) + _MAX_MESSAGES
        pull = pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull", request_serializer=None, response_deserializer=None
        )
        flying = deque(pull.future(request) for _ in range(IN_FLIGHT))
        attempt = 0
        while True:
            batches: list[pa.RecordBatch] = []
            size = 0
            while size < LIMIT_COMMIT_BYTES:
                try:
                    response = flying[0].result(timeout=_IDLE_SECONDS)
                except grpc.FutureTimeoutError:
                    if batches:
                        break
                    continue
                flying.popleft()
                flying.append(pull.future(request))
                if response:
                    size += len(response)
                    batches.append(decode_pull_response(response))
            attempt += 1
            file = archive.writer().write([(TOPIC, SUBSCRIPTION, batch) for batch in batches])
            archive.commit([file], Attempt(name, attempt, name, epoch))
            acknowledge(pubsub.channel, path, pa.concat_arrays([batch.column("ack_id") for batch in batches]))


if __name__ == "__main__":
    main()
