-- The days in which changed keys and rows that go lie, and those in which the keys come to lie: the partitions that a
-- merge may touch.
-- Of reporting it reads the key and the partitioning column, and where a row without a key is looked for the columns of
-- its message; what follows names these days as constants.
SELECT DISTINCT found.day
FROM (
  SELECT __reporting_day__ AS day
  FROM __reporting__ AS r
  WHERE
    __reporting_key__ IN (SELECT c._refeed_key FROM __changes__ AS c)
    OR __reporting_key__ IN (SELECT d._refeed_key FROM __displaced__ AS d)
  UNION ALL
  SELECT __change_day__ AS day FROM __changes__ AS c
) AS found
