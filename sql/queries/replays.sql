-- The replays among what staging had at @until in partitions from @partitions_from on, and which message each is of.
SELECT __replay_columns__
FROM __staging__ AS s FOR SYSTEM_TIME AS OF @until
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND NOT s._backfill_id IS NULL
