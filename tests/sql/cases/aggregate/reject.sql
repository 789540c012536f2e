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
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY 9
--- having without a group
--: codes not_grouped
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' HAVING TRUE
--- a group by a literal
--: codes group_ordinal
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, ANY_VALUE(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY 'a'
--- a count of no table
--: codes aggregate_not_allowed
SELECT *, (SELECT COUNT(*)) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a separator from a column
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, STRING_AGG(topic, message_id) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- a separator of bytes
--: codes type_mismatch
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, STRING_AGG(topic, b',') AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- quantiles by nothing
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, APPROX_QUANTILES(LENGTH(topic), 0) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- a sketch that is too coarse
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, HLL_COUNT.INIT(topic, 5) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- an array of arrays
--: codes type_mismatch
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, ARRAY_AGG(attributes) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- distinct values by another order
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, STRING_AGG(DISTINCT topic ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- a correlation of distinct values
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, CORR(DISTINCT 1, 2) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- an attribute beside another one that is grouped
--: codes not_grouped
SELECT (SELECT value FROM UNNEST(attributes) WHERE key = 'type') AS event, (SELECT value FROM UNNEST(attributes) WHERE key = 'region') AS region, ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY event
