--- a column beside an aggregate
--: codes not_grouped
SELECT data, attributes, message_id, COUNT(*) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a column that is not grouped
--: codes not_grouped
SELECT data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- an aggregate in where
--: codes aggregate_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND COUNT(*) > 1
--- an aggregate in an aggregate
--: codes aggregate_not_allowed
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, SUM(COUNT(*)) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- an ordinal that is not there
--: codes group_ordinal
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, 'x' AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY 9
--- having without a group
--: codes not_grouped
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' HAVING TRUE
