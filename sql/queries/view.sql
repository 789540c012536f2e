-- What people query: reporting, and all of staging since the last merge, two days at least, rows in the write buffer
-- included. Each key is there once, in its newest version; what was removed is hidden.
CREATE OR REPLACE VIEW __view__ AS
SELECT __columns_of_both__
FROM (
  SELECT __reporting_columns__, 0 AS _refeed_rank
  FROM __reporting__ AS r
  UNION ALL
  SELECT __changed_columns__, __is_removed__ AS _deleted, 1 AS _refeed_rank
  FROM __staging__ AS s
  WHERE
    s._PARTITIONTIME >= TIMESTAMP_TRUNC(LEAST(__since__, TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 2 DAY)), DAY)
    OR s._PARTITIONTIME IS NULL
) AS b
WHERE TRUE
QUALIFY ROW_NUMBER() OVER (PARTITION BY __key_of_both__ ORDER BY __newest_of_both_first__, b._refeed_rank) = 1
  AND __is_shown__
