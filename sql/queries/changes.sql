-- The newest version of each key among what came to staging in (since, until], rows in the write buffer included.
-- Its rows are kept in a table of the merge's own, so that every later step sees the same.
SELECT
  __changed_columns__,
  __is_removed__ AS _deleted,
  __staged_key__ AS _refeed_key
FROM __staging__ AS s
WHERE
  (s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL)
  AND s.ingest_time > @since
  AND s.ingest_time <= @until
QUALIFY ROW_NUMBER() OVER (PARTITION BY __staged_key__ ORDER BY __newest_first__) = 1
