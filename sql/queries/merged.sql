-- How many of them a merge has taken: those that staging had when it looked.
SELECT COUNT(DISTINCT s._backfill_row) AS merged
FROM __staging__ AS s FOR SYSTEM_TIME AS OF @merged_until
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND s._backfill_id = @backfill
