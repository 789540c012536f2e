-- How many of the changes are rows of no entity: all columns of their key are null.
SELECT COUNT(*) AS without_key FROM __changes__ AS c WHERE __is_without_key__
