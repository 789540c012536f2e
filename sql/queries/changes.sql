-- The newest version of each key among what staging had at @until in partitions from @partitions_from on, rows in the
-- write buffer included. Both are of BigQuery's clock; what workers wrote into ingest_time has no say in it. Rows that
-- a replay repairs are no versions. Its rows are kept in a table of the merge's own, so that every later step sees the
-- same. Of a key whose versions have texts of several kinds it can't be told which is newest.
WITH staged AS (
  SELECT __staged_columns__
  FROM __staging__ AS s FOR SYSTEM_TIME AS OF @until
  WHERE s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL
)
SELECT
  __changed_columns__,
  __is_removed__ AS _deleted,
  __staged_key__ AS _refeed_key,
  __has_unordered__ AS _refeed_unordered
FROM staged AS s
WHERE NOT EXISTS (SELECT 1 FROM __replays__ AS y WHERE __repairs_staged__)
QUALIFY ROW_NUMBER() OVER (PARTITION BY __staged_key__ ORDER BY __newest_first__) = 1
