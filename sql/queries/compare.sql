-- What a merge of the changes would do, counted before it is done; a version that is not newer changes nothing. A row
-- that goes counts as replaced, and its key as held no more.
WITH held AS (
  SELECT
    __reporting_key__ AS _refeed_key,
    __reporting_day__ AS day,
    __reporting_key__ IN (SELECT d._refeed_key FROM __displaced__ AS d) AS is_displaced,
    __order_columns__
  FROM __reporting__ AS r
  WHERE __in_days__
), compared AS (
  SELECT
    __change_day__ AS new_day,
    h.day AS old_day,
    NOT h._refeed_key IS NULL AS is_held,
    h._refeed_key IS NULL OR __is_newer_than_held__ AS is_newer,
    c._refeed_unordered OR __is_unordered_with_held__ AS is_unordered,
    c.ingest_time AS ingest_time
  FROM __changes__ AS c
  LEFT JOIN held AS h ON h._refeed_key = c._refeed_key AND NOT h.is_displaced
)
SELECT
  COUNT(*) AS changed,
  COUNTIF(m.is_newer) AS newer,
  COUNTIF(NOT m.is_newer) AS older,
  COUNTIF(m.is_unordered) AS unordered,
  COUNTIF(m.is_newer AND m.is_held) + (SELECT COUNT(*) FROM held AS h WHERE h.is_displaced) AS replaced,
  COALESCE(MAX(IF(m.is_newer, UNIX_MICROS(m.ingest_time), 0)), 0) AS newest_staged_us,
  STRING_AGG(DISTINCT IF(m.is_newer, COALESCE(CAST(m.new_day AS STRING), 'none'), NULL), ',') AS new_days,
  STRING_AGG(DISTINCT IF(m.is_newer AND m.is_held, COALESCE(CAST(m.old_day AS STRING), 'none'), NULL), ',') AS old_days,
  (
    SELECT STRING_AGG(DISTINCT COALESCE(CAST(h.day AS STRING), 'none'), ',')
    FROM held AS h
    WHERE h.is_displaced
  ) AS left_days,
  (SELECT COUNT(*) FROM held) AS rows_before
FROM compared AS m
