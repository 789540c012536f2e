"""Amazon Kinesis Data Streams: shards, their records, and the Producer Library's aggregates."""
