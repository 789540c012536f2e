-- The rows of reporting that a replay repairs: they go. One whose key has a newer change is simply replaced; of the
-- others' keys anything in staging may be newest now. Of reporting it reads all of a few columns.
SELECT
  __reporting_key__ AS _refeed_key,
  NOT c._refeed_key IS NULL AND __is_newer__ AND NOT __is_unordered__ AS has_heir
FROM __reporting__ AS r
LEFT JOIN __changes__ AS c ON __reporting_key__ = c._refeed_key
WHERE EXISTS (SELECT 1 FROM __replays__ AS y WHERE __repairs_reporting__)
