-- How many of them a merge has taken: those that were written up to its watermark.
SELECT COUNT(DISTINCT s._backfill_row) AS merged
FROM __staging__ AS s
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND s._backfill_id = @backfill
  AND s.ingest_time <= @merged_until
