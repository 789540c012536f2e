-- The numbers of a backfill's rows that are in staging, each once, rows in the write buffer included.
SELECT DISTINCT s._backfill_row AS landed
FROM __staging__ AS s
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND s._backfill_id = @backfill
  AND NOT s._backfill_row IS NULL
