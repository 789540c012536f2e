import pytest
from google.pubsub_v1 import types

from connectors.pubsub.messages import find_message


@pytest.mark.parametrize(
    "name", ["PubsubMessage", "ReceivedMessage", "PullResponse", "PublishRequest", "PublishResponse"]
)
def test_a_message_has_the_fields_of_googles_own(name):
    google = getattr(types, name).pb(getattr(types, name)()).DESCRIPTOR

    def fields(descriptor):
        return [(f.name, f.number, f.type, f.is_repeated) for f in descriptor.fields]

    assert fields(find_message(name)) == fields(google)
    nested = {m.name: fields(m) for m in find_message(name).nested_types}
    assert nested == {m.name: fields(m) for m in google.nested_types}
