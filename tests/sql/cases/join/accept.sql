--- with itself
--: rows m1 m2
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = b.message_id WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- with itself by using
--: rows m1 m2
SELECT a.data, a.attributes, message_id FROM backup.messages a JOIN backup.messages b USING (message_id) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- bounds in the condition
--: rows m1 m2
SELECT a.* FROM backup.messages a INNER JOIN backup.messages b ON a.message_id = b.message_id AND a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- the optional side bound in the condition
--: rows m1 m2
SELECT a.* FROM backup.messages a LEFT JOIN backup.messages b ON a.message_id = b.message_id AND b._PARTITIONDATE = '2024-01-05' WHERE a._PARTITIONDATE = '2024-01-01' AND b.message_id IS NULL
--- with the latest of each
--: rows m8
WITH latest AS (SELECT topic, MAX(publish_time) AS t FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' GROUP BY topic) SELECT m.* FROM backup.messages m JOIN latest AS l ON m.topic = l.topic AND m.publish_time = l.t WHERE m._PARTITIONTIME >= '2024-01-01' AND m.topic = 'orders'
--- with a single row
--: rows m8
SELECT m.* FROM backup.messages m CROSS JOIN (SELECT MAX(publish_time) AS t FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01') AS l WHERE m._PARTITIONTIME >= '2024-01-01' AND m.publish_time = l.t
--- items in brackets
--: rows m1 m2
SELECT a.* FROM (backup.messages a JOIN backup.messages b ON a.message_id = b.message_id) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- by what the data says on both sides
--: rows m1 m8
SELECT a.* FROM backup.messages a JOIN (SELECT JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') AS id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic = 'orders') b ON JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(a.data), '$.id') = b.id WHERE a._PARTITIONTIME >= '2024-01-01' AND a.topic = 'orders' AND a.message_id != 'm2'
--- by an attribute and what the data says
--: rows m1
SELECT a.* FROM backup.messages a JOIN backup.messages b ON CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(a.data), '$.id') AS INT64) + 0 = 1 AND SHA256(a.data) = SHA256(b.data) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- an id that the data of another message names
--: rows m1
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = 'm' || JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(b.data), '$.id') WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01' AND b.message_id = 'm1'
--- with one row of each topic
--: rows m1 m2
SELECT m.* FROM backup.messages m JOIN (SELECT topic, COUNT(*) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY topic) AS g USING (topic) WHERE m._PARTITIONDATE = '2024-01-01' AND g.n = 2
--- with the topics that there are
--: rows m1 m2
SELECT m.* FROM backup.messages m JOIN (SELECT DISTINCT topic FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS g ON m.topic = g.topic WHERE m._PARTITIONDATE = '2024-01-01'
--- three in a row
--: rows m1 m2
SELECT a.* FROM backup.messages a JOIN backup.messages b USING (message_id) JOIN backup.messages c USING (message_id) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01' AND c._PARTITIONDATE = '2024-01-01'
--- by numbers that the data says, of two types
--: rows m1 m8
SELECT a.* FROM backup.messages a JOIN backup.messages b ON CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(a.data), '$.id') AS INT64) = CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(b.data), '$.id') AS FLOAT64) WHERE a._PARTITIONTIME >= '2024-01-01' AND b._PARTITIONDATE = '2024-01-01' AND a.topic = 'orders' AND a.message_id IN ('m1', 'm8')
