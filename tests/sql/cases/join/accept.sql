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
