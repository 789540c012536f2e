from tests.backfill.conftest import emulator_host, pubsub

__all__ = ["emulator_host", "pubsub"]
