import uuid

import pytest

from tests.standin.fixture import session_standin, shared_standin, standin

__all__ = ["session_standin", "shared_standin", "standin"]


@pytest.fixture
def dataset(shared_standin):
    """A dataset of this test's own, by its name."""
    name = f"d{uuid.uuid4().hex[:12]}"
    client = shared_standin.client()
    client.create_dataset(name)
    return name
