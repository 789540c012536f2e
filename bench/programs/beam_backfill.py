"""What a user of Apache Beam would write: Parquet files to a topic, on the local runner.

Runs in a virtual environment of its own and imports nothing of Refeed. Arguments: topic path, file pattern.
"""

import sys
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions


def as_message(row: dict[str, Any]) -> PubsubMessage:
    attributes = {pair["key"]: pair["value"] for pair in row["attributes"]}
    return PubsubMessage(row["data"], attributes)


def main() -> None:
    topic, pattern = sys.argv[1:]
    with beam.Pipeline(options=PipelineOptions([], runner="DirectRunner")) as pipeline:
        (
            pipeline
            | beam.io.ReadFromParquet(pattern, columns=["data", "attributes"])
            | beam.Map(as_message)
            | beam.io.WriteToPubSub(topic, with_attributes=True)
        )


if __name__ == "__main__":
    main()
