"""What callers hold of a collector's memory, connections and event loop is bounded, whatever they send."""

import asyncio
import json

from tests.collector.test_server import talk

HEADERS = [(b"host", b"localhost")]


class SlowBody:
    """A caller that sends all pieces of a body but the last one, and that one when it is told to."""

    def __init__(self, app, path, pieces, piece_bytes, end):
        self._pieces = pieces
        self._piece_bytes = piece_bytes
        self._end = end
        self.sent_bytes = 0
        self.status = 0
        scope = {"type": "http", "method": "POST", "path": path, "headers": HEADERS, "client": ("127.0.0.1", 1)}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        await asyncio.sleep(0)
        left = self._pieces * self._piece_bytes - self.sent_bytes
        if left <= self._piece_bytes:
            await self._end.wait()
        self.sent_bytes += self._piece_bytes
        return {"type": "http.request", "body": bytes(self._piece_bytes), "more_body": left > self._piece_bytes}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]


def test_slow_bodies_hold_no_more_together_than_all_requests_may(yard):
    settings = yard.settings("topics: {TOPIC: {format: raw}}")
    object.__setattr__(settings, "held_bytes", 500_000)
    app = yard.collector(settings)

    async def work():
        end = asyncio.Event()
        callers = [SlowBody(app, f"/{yard.topic}", 10, 9_900, end) for _ in range(60)]
        _, waiting = await asyncio.wait([each.task for each in callers], timeout=1)
        held = sum(each.sent_bytes for each in callers if each.task in waiting)
        assert held == app._held._held <= 500_000
        assert {each.status for each in callers if each.task not in waiting} == {503}
        end.set()
        await asyncio.gather(*(each.task for each in callers))
        return callers

    callers = yard.loop.run(work())
    taken = sum(each.status == 200 for each in callers)
    assert 0 < taken <= 5
    yard.pull(taken)
    # What was held is free again.
    assert app._held._held == 0
    assert yard.post(b"1", app=app).status_code == 200
    yard.pull(1)


def test_connections_are_bounded(yard):
    async def work(port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        head = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        # Nothing is sent: a server that closes before it has read may take its answer back.
        said = await talk(port)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "queue_full"
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(10):
            while not (await talk(port, head)).startswith(b"HTTP/1.1 200 "):  # noqa: ASYNC110  nobody says it
                await asyncio.sleep(0.01)

    yard.serve(work, max_connections=2)


def test_the_rest_of_a_body_that_was_refused_has_a_time(yard):
    async def work(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")

        async def trickle():
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        drip = asyncio.create_task(trickle())
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b"HTTP/1.1 404 "
        finally:
            drip.cancel()
            writer.close()

    assert yard.serve(work, head_seconds=0.2).startswith(b"HTTP/1.1 404 ")
