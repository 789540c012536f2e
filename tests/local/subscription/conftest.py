"""A subscription over files of its own, with a clock that a test turns by hand."""

import pytest
from google.pubsub_v1 import types

from local.acklog import AckLog
from local.segments import MessageLog
from local.subscription import Rules, Subscription
from local.wire import parse_ack_ids
from model.filters import parse_filter

PubsubMessage = types.PubsubMessage.pb()
PullResponse = types.PullResponse.pb()
DAY = 86_400.0


class Bench:
    """A subscription with a clock that a test turns by hand."""

    def __init__(self, folder, *, ordered=False, text="", deadline=10):
        self.now = 1000.0
        self.folder = folder
        self.options = {"ordered": ordered, "text": text, "deadline": deadline}
        self.log = MessageLog(folder / "log", 10**15, segment_bytes=2000)
        self.opened: list[AckLog] = []
        self.open()

    def open(self):
        """Begin anew on the same files, as after a kill: what was open before is closed by :meth:`close` only."""
        self.acks = AckLog(self.folder / "acks", 0)
        self.opened.append(self.acks)
        self.subscription = Subscription(
            1,
            self.log,
            self.acks,
            parse_filter(self.options["text"]),
            Rules(self.options["deadline"], 7 * DAY),
            ordered=self.options["ordered"],
            clock=lambda: self.now,
        )

    def close(self):
        while self.opened:
            self.opened.pop().close()

    def publish(self, *texts, key="", **attributes):
        self.log.append(
            [
                PubsubMessage(data=t.encode(), ordering_key=key, attributes=attributes).SerializeToString()
                for t in texts
            ]
        )

    def pull(self, count=100, max_bytes=1_000_000, **options):
        """Return the ack id of each delivered text."""
        raw = self.subscription.take(count, max_bytes, **options)
        return {m.message.data.decode(): m.ack_id for m in PullResponse.FromString(raw).received_messages}

    def ack(self, *ack_ids):
        self.subscription.acknowledge(parse_ack_ids(ack_ids))

    def extend(self, seconds, *ack_ids):
        self.subscription.modify_ack_deadline(parse_ack_ids(ack_ids), seconds)


@pytest.fixture
def open_bench(tmp_path):
    """Open one with other options, or in another folder; all are closed at the end."""
    opened = []

    def open_one(folder=tmp_path, **options):
        opened.append(Bench(folder, **options))
        return opened[-1]

    yield open_one
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(open_bench):
    return open_bench()
