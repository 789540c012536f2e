"""The publish times of an entry's messages as one time span for each topic, in little memory."""

import zlib
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

# With more topics, several share a place and one wider span.
_PLACES: Final = 64
_EMPTY: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TopicSpans:
    """The first and the last publish time of the messages of each topic, in microseconds."""

    first: np.ndarray[Any, np.dtype[np.int64]]
    last: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, ids: pa.Table) -> Self:
        """Return the spans of the ids in ``ids``."""
        first, last = np.full(_PLACES, _EMPTY.max), np.full(_PLACES, _EMPTY.min)
        rows = ids.select(["topic", "publish_time"]).unify_dictionaries().combine_chunks().to_batches()
        for batch in rows:
            topics = batch.column("topic")
            if not pa.types.is_dictionary(topics.type):
                topics = topics.dictionary_encode()
            names = topics.dictionary.to_pylist()
            places = np.array([zlib.crc32(name.encode()) % _PLACES for name in names], dtype=np.int64)
            at = places[topics.indices.to_numpy(zero_copy_only=False)]
            times = batch.column("publish_time").cast(pa.int64()).to_numpy(zero_copy_only=False)
            np.minimum.at(first, at, times)
            np.maximum.at(last, at, times)
        return cls(first, last)

    def overlap(self, other: Self) -> bool:
        """Whether the spans of a topic overlap; may be true also for two different topics, never wrongly false."""
        return bool(np.any((self.first <= other.last) & (other.first <= self.last)))
