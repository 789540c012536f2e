-- What came into the archive by topic since @low: clustering keeps the columns that are read small, payloads are
-- never read. Rows of the write buffer have no partition yet.
SELECT a.topic AS topic, COUNT(*) AS messages, MAX(a.publish_time) AS published, MAX(a.ingest_time) AS ingested
FROM __archive__ AS a
WHERE (a._PARTITIONTIME >= @partitions_from OR a._PARTITIONTIME IS NULL) AND a.ingest_time >= @low
GROUP BY 1
