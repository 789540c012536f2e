"""What people write: a FastAPI route and Google's client, which answers after each publish or before it."""

import asyncio
import sys

import uvicorn
from fastapi import FastAPI, Request
from google.cloud.pubsub_v1 import PublisherClient

PROJECT, TOPIC, PORT, IS_AWAITED = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "await"

app = FastAPI()
publisher = PublisherClient()
path = publisher.topic_path(PROJECT, TOPIC)


@app.post("/{topic}")
async def collect(topic: str, request: Request) -> dict[str, str]:
    future = publisher.publish(path, await request.body(), collected=topic, source="http")
    if IS_AWAITED:
        await asyncio.wrap_future(future)
    return {"status": "ok"}


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
