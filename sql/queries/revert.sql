-- A backfill taken out of staging; what a merge has taken stays in reporting.
DELETE FROM __staging__ AS s
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND s._backfill_id = @backfill
