-- How many rows of reporting go whose key has no newer change.
SELECT COUNT(*) AS orphans FROM __displaced__ AS d WHERE NOT d.has_heir
