--- ids of another day
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (SELECT b.message_id FROM backup.messages b WHERE b._PARTITIONTIME >= '2024-01-01' AND b.message_id = 'm1')
--- exists in another day
--: rows m1
SELECT * FROM backup.messages m WHERE _PARTITIONDATE = '2024-01-01' AND EXISTS (SELECT 1 FROM backup.messages o WHERE o._PARTITIONDATE = '2024-01-05' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(o.data), '$.id') = JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.id'))
--- compared with a scalar
--: rows m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND publish_time = (SELECT MAX(publish_time) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01')
--- a query in a query
--: rows m1 m2
SELECT * FROM (SELECT * FROM (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'))
--- a cut before a filter
--: rows m2
SELECT * FROM (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' ORDER BY publish_time DESC LIMIT 1) WHERE topic = 'orders'
