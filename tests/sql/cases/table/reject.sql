--- another table
--: codes table_not_allowed
SELECT data, attributes, message_id FROM other.messages
--- another project
--: codes table_not_allowed
SELECT data, attributes, message_id FROM evil.backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another case of letters
--: codes table_not_allowed
SELECT data, attributes, message_id FROM backup.Messages WHERE _PARTITIONDATE = '2024-01-01'
--- no dataset
--: codes table_not_allowed
SELECT data, attributes, message_id FROM messages WHERE _PARTITIONDATE = '2024-01-01'
--- a wildcard table
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.*` WHERE _PARTITIONDATE = '2024-01-01'
--- a wildcard suffix
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.messages*` WHERE _PARTITIONDATE = '2024-01-01'
--- a wildcard without backticks
--: codes table_not_allowed
SELECT data, attributes, message_id FROM backup.mess* WHERE _PARTITIONDATE = '2024-01-01'
--- a partition decorator
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.messages$20240101`
--- a snapshot decorator
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.messages@-3600000`
--- the schema of schemas
--: codes table_not_allowed
SELECT data, attributes, message_id FROM backup.INFORMATION_SCHEMA.TABLES
--- the schema of a region
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `region-eu`.INFORMATION_SCHEMA.JOBS
--- joined with another table
--: codes table_not_allowed
SELECT m.* FROM backup.messages m JOIN ops.secrets s ON m.message_id = s.id WHERE m._PARTITIONDATE = '2024-01-01'
--- another table after a comma
--: codes table_not_allowed
SELECT m.* FROM backup.messages m, ops.secrets WHERE m._PARTITIONDATE = '2024-01-01'
--- another table in a subquery
--: codes table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (SELECT id FROM ops.secrets)
--- another table in exists
--: codes table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND EXISTS (SELECT 1 FROM ops.secrets)
--- another table in the select list
--: codes table_not_allowed
SELECT *, (SELECT MAX(x) FROM ops.secrets) AS x FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another table in an array
--: codes table_not_allowed
SELECT *, ARRAY(SELECT x FROM ops.secrets) AS x FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another table in a cte
--: codes table_not_allowed
WITH x AS (SELECT * FROM ops.secrets) SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another table in a union
--: codes set_operation_columns table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT * FROM ops.secrets
--- another table in order by
--: codes table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' ORDER BY (SELECT MAX(x) FROM ops.secrets)
--- another table in limit
--: codes limit_not_constant table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' LIMIT (SELECT MAX(x) FROM ops.secrets)
--- another table in unnest
--: codes table_not_allowed
SELECT data, attributes, message_id FROM backup.messages, UNNEST(ARRAY(SELECT x FROM ops.secrets)) WHERE _PARTITIONDATE = '2024-01-01'
--- another table in a window
--: codes table_not_allowed
SELECT *, ROW_NUMBER() OVER (ORDER BY (SELECT MAX(x) FROM ops.secrets)) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another table in qualify
--: codes table_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' QUALIFY ROW_NUMBER() OVER (ORDER BY message_id) < (SELECT MAX(x) FROM ops.secrets)
--- another table in group by
--: codes table_not_allowed
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id, (SELECT MAX(x) FROM ops.secrets)
--- a letter that only looks like one
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.mеssages` WHERE _PARTITIONDATE = '2024-01-01'
--- a wide letter
--: codes identifier_lookalike
SELECT data, attributes, message_id FROM `backup.ｍessages` WHERE _PARTITIONDATE = '2024-01-01'
--- an escape in the name
--: codes identifier_escape
SELECT data, attributes, message_id FROM `backup\x2emessages` WHERE _PARTITIONDATE = '2024-01-01'
--- a cte that pretends to be the archive
--: codes archive_not_read
WITH `backup.messages` AS (SELECT b'x' AS data, [STRUCT('a' AS key, 'b' AS value)] AS attributes, 'm' AS message_id) SELECT * FROM `backup.messages`
--- a table function
--: codes table_function
SELECT data, attributes, message_id FROM backup.messages_of('orders')
--- changes of the archive
--: codes table_function
SELECT data, attributes, message_id FROM APPENDS(TABLE backup.messages, NULL, NULL)
--- a model
--: codes table_function
SELECT * FROM ML.PREDICT(MODEL ops.model, TABLE backup.messages)
--- another database
--: codes table_function
SELECT * FROM EXTERNAL_QUERY('connection', 'SELECT 1')
--- a vector search
--: codes table_function
SELECT * FROM VECTOR_SEARCH(TABLE backup.messages, 'data', TABLE ops.secrets)
--- a sample with a computed percentage
--: codes limit_not_constant
SELECT * FROM backup.messages TABLESAMPLE SYSTEM (101 PERCENT) WHERE _PARTITIONDATE = '2024-01-01'
--- a table named in backticks with a space
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `backup.messages ` WHERE _PARTITIONDATE = '2024-01-01'
