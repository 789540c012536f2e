import asyncio
from typing import Any

import pytest

from api.deadline import AnswerLimit

SCOPE = {"type": "http", "method": "POST", "path": "/backfills", "query_string": b"", "headers": []}


class Wire:
    """What a server would have sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    @property
    def status(self) -> int:
        starts = [message["status"] for message in self.sent if message["type"] == "http.response.start"]
        assert len(starts) == 1
        return int(starts[0])


async def answer(send: Any, *bodies: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for body in bodies:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def test_an_answer_in_time_passes_as_it_is() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await answer(send, b"a", b"b")

    wire = Wire()
    asyncio.run(AnswerLimit(app, 20)(SCOPE, wire.receive, wire.send))
    assert [message.get("body") for message in wire.sent] == [None, b"a", b"b", b""]


def answer_late(app: Any) -> Wire:
    """Return what was sent for an app that goes on only after its time, and has ended since."""

    async def run() -> Wire:
        go_on = asyncio.Event()

        async def wait(_scope: Any, receive: Any, send: Any) -> None:
            await go_on.wait()
            await app(receive, send)

        wire, limit = Wire(), AnswerLimit(wait, 0.05)
        await limit(SCOPE, wire.receive, wire.send)
        go_on.set()
        await asyncio.wait(limit._late, timeout=20)
        return wire

    return asyncio.run(run())


def test_a_late_answer_is_a_problem_and_what_was_begun_goes_on() -> None:
    done: list[str] = []

    async def app(receive: Any, send: Any) -> None:
        done.append((await receive())["type"])
        await answer(send, b"too late")
        done.append("ended")

    wire = answer_late(app)
    assert wire.status == 504
    assert b"answer_timeout" in wire.sent[1]["body"]
    assert b"too late" not in b"".join(message.get("body", b"") for message in wire.sent)
    assert done == ["http.disconnect", "ended"]


def test_a_stream_that_has_begun_may_take_its_time() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"event", "more_body": False})

    wire = Wire()
    asyncio.run(AnswerLimit(app, 0.05)(SCOPE, wire.receive, wire.send))
    assert (wire.status, wire.sent[-1]["body"]) == (200, b"event")


def test_a_fault_is_the_caller_s_to_answer() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    wire = Wire()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(AnswerLimit(app, 20)(SCOPE, wire.receive, wire.send))
    assert wire.sent == []


def test_a_late_fault_ends_nothing() -> None:
    async def app(_receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    assert answer_late(app).status == 504


def test_a_caller_that_goes_away_takes_its_work_along() -> None:
    async def run() -> bool:
        was_cancelled = asyncio.Event()

        async def app(_scope: Any, _receive: Any, _send: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                was_cancelled.set()
                raise

        wire = Wire()
        call = asyncio.create_task(AnswerLimit(app, 60)(SCOPE, wire.receive, wire.send))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call}, timeout=20)
        await asyncio.wait_for(was_cancelled.wait(), 20)
        return was_cancelled.is_set()

    assert asyncio.run(run())
