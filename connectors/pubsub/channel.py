"""Channels to Pub/Sub: where it is, who asks, and how large an answer may be."""

import functools
from typing import Final, TypeGuard

import grpc

from model.errors import PubSubCredentialsError

_ENDPOINT: Final = "pubsub.googleapis.com:443"
_SECURE: Final = "https://"
_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)

# A pulled response is up to 10 MB of messages and their ids; grpc's own cap is 4 MiB, and keep-alives find
# a peer that is gone without a word.
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # An answer that refuses ack ids (exactly-once delivery) names each of them in its metadata; gRPC takes 8 KiB.
    ("grpc.max_metadata_size", 2 * 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 4 * 1024 * 1024),
    # Channels that ask for the same would share a connection, and its limit of calls at a time.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A server that restarts on the same port is found again within a second, not after a minute of back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def is_local(address: str | None) -> TypeGuard[str]:
    """Whether Pub/Sub is a local server there, and not Google's."""
    return address is not None and not address.startswith(_SECURE)


def open_channel(address: str | None) -> grpc.Channel:
    """Return a channel to Pub/Sub: plain to a local server, else TLS with Application Default Credentials.

    ``address`` is a local server's host:port, ``https://host:port`` of one of Google's endpoints, or None for the
    global one.

    Google's clients give a channel to PUBSUB_EMULATOR_HOST no options, so that one response over 4 MiB fails;
    this one has them in both cases.

    Raises:
        PubSubCredentialsError: there are none.
    """
    if is_local(address):
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    # Half a second of imports that a local server needs none of.
    import google.auth
    import google.auth.exceptions
    import google.auth.transport.grpc
    import google.auth.transport.requests

    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except google.auth.exceptions.DefaultCredentialsError as exc:
        raise PubSubCredentialsError(
            "No local Pub/Sub server runs, and no Google credentials were found. Start a local server with "
            "'refeed up', or name one in PUBSUB_EMULATOR_HOST. For Google's Pub/Sub, run "
            "'gcloud auth application-default login'."
        ) from exc
    endpoint = _ENDPOINT if address is None else address.removeprefix(_SECURE)
    channel: grpc.Channel = google.auth.transport.grpc.secure_authorized_channel(  # type: ignore[no-untyped-call]
        credentials, google.auth.transport.requests.Request(), endpoint, options=_CHANNEL_OPTIONS
    )
    return channel


@functools.cache
def process_channel(address: str | None) -> grpc.Channel:
    """Return the one channel that this process keeps, for tasks that follow each other; nobody closes it.

    A channel of its own would cost each task the way there and back for the connection, and some more until the
    server has learnt how much may be under way.

    Raises:
        PubSubCredentialsError: there are none.
    """
    return open_channel(address)
