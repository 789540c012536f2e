-- The changes, where those keys have the newest version that is left of them in all of staging.
WITH staged AS (
  SELECT __staged_columns__
  FROM __staging__ AS s FOR SYSTEM_TIME AS OF @until
  WHERE s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL
)
SELECT __values__, c._refeed_key, c._refeed_unordered
FROM __changes__ AS c
WHERE NOT c._refeed_key IN (SELECT d._refeed_key FROM __displaced__ AS d WHERE NOT d.has_heir)
UNION ALL
SELECT __values__, c._refeed_key, c._refeed_unordered
FROM (
  SELECT
    __changed_columns__,
    __is_removed__ AS _deleted,
    __staged_key__ AS _refeed_key,
    __has_unordered__ AS _refeed_unordered
  FROM staged AS s
  WHERE
    __staged_key__ IN (SELECT d._refeed_key FROM __displaced__ AS d WHERE NOT d.has_heir)
    AND NOT EXISTS (SELECT 1 FROM staged AS y WHERE __repairs_staged__)
  QUALIFY ROW_NUMBER() OVER (PARTITION BY __staged_key__ ORDER BY __newest_first__) = 1
) AS c
