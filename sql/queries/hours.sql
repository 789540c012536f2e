-- How many messages of one topic came in, by hour of their ingestion; a row reaches its partition within a day.
SELECT TIMESTAMP_TRUNC(a.ingest_time, HOUR) AS start, COUNT(*) AS messages
FROM __archive__ AS a
WHERE ((a._PARTITIONTIME >= @partitions_from AND a._PARTITIONTIME <= @partitions_to) OR a._PARTITIONTIME IS NULL)
  AND a.topic = @topic AND a.ingest_time >= @low AND a.ingest_time < @high
GROUP BY 1
