-- One source merged: all of it or nothing. The days are constants, so that no other partition is read or written.
-- A merge that another one overtook ends at the first SELECT, one that does not add up at the second.
BEGIN TRANSACTION;

SELECT IF((SELECT MAX(w.number) FROM __watermark__ AS w) = @number, TRUE, ERROR('refeed_overtaken'));

DELETE FROM __reporting__ AS r
WHERE __in_days__ AND __reporting_key__ IN (SELECT d._refeed_key FROM __displaced__ AS d);

MERGE INTO __reporting__ AS r
USING __changes__ AS c
ON __reporting_key__ = c._refeed_key AND __in_days__
WHEN MATCHED AND __is_newer__ THEN UPDATE SET __columns__ = __values__
WHEN NOT MATCHED BY TARGET THEN INSERT (__columns__) VALUES (__values__);

INSERT INTO __audits__ (merge, source, until, name, is_passed, expected, found, details, ingest_time)
WITH counted AS (
  SELECT
    COUNT(*) AS rows_after,
    COUNT(DISTINCT __reporting_key__) AS keys_after,
    COALESCE(MAX(UNIX_MICROS(r.ingest_time)), 0) AS newest_us
  FROM __reporting__ AS r
  WHERE __in_days__
), present AS (
  SELECT COUNT(*) AS keys
  FROM __changes__ AS c
  JOIN __reporting__ AS r ON __reporting_key__ = c._refeed_key
  WHERE __in_days__
), checked AS (
  SELECT
    'keys_unique' AS name,
    n.keys_after = n.rows_after AS is_passed,
    n.keys_after AS expected,
    n.rows_after AS found
  FROM counted AS n
  UNION ALL
  SELECT
    'counts_reconciled',
    n.rows_after = @rows_after AND p.keys = @changed AND @changed = @newer + @older,
    @rows_after,
    n.rows_after
  FROM counted AS n CROSS JOIN present AS p
  UNION ALL
  SELECT 'freshness', n.newest_us >= @newest_staged_us, @newest_staged_us, n.newest_us
  FROM counted AS n
)
SELECT
  @merge, @source, @until, k.name, k.is_passed, k.expected, k.found, PARSE_JSON(@details), CURRENT_TIMESTAMP()
FROM checked AS k;

SELECT
  IF(
    COUNTIF(NOT a.is_passed) = 0,
    TRUE,
    ERROR(CONCAT('refeed_audits ', TO_JSON_STRING(ARRAY_AGG(STRUCT(a.name, a.is_passed, a.expected, a.found)))))
  )
FROM __audits__ AS a
WHERE a.source = @source AND a.merge = @merge;

UPDATE __watermark__ AS w
SET number = w.number + 1, until = @until, merged_at = CURRENT_TIMESTAMP()
WHERE w.number = @number;

COMMIT TRANSACTION;
