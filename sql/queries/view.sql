-- What people query: reporting, and all of staging since the last merge, two days at least, rows in the write buffer
-- included. Each key is there once, in its newest version; what was removed is hidden, and so is every row that a replay
-- among these repairs.
CREATE OR REPLACE VIEW __view__ AS
WITH recent AS (
  SELECT __staged_columns__
  FROM __staging__ AS s
  WHERE
    s._PARTITIONTIME >= TIMESTAMP_TRUNC(LEAST(__since__, TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 2 DAY)), DAY)
    OR s._PARTITIONTIME IS NULL
)
SELECT __columns_of_both__
FROM (
  SELECT __reporting_columns__, 0 AS _refeed_rank
  FROM __reporting__ AS r
  WHERE NOT EXISTS (SELECT 1 FROM recent AS y WHERE __repairs_reporting__)
  UNION ALL
  SELECT __changed_columns__, __is_removed__ AS _deleted, 1 AS _refeed_rank
  FROM recent AS s
  WHERE NOT EXISTS (SELECT 1 FROM recent AS y WHERE __repairs_staged__)
) AS b
WHERE TRUE
QUALIFY ROW_NUMBER() OVER (PARTITION BY __key_of_both__ ORDER BY __newest_of_both_first__, b._refeed_rank) = 1
  AND __is_shown__
