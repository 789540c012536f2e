--- union all
--: rows m1 m2 m8
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-05'
--- union all of the same
--: rows m1 m1 m2 m2
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- union distinct
--: rows m1 m2
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION DISTINCT SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- except distinct
--: rows m2
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' EXCEPT DISTINCT SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = 'm1'
--- intersect distinct in brackets with an order
--: rows m1
(SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') INTERSECT DISTINCT (SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = 'm1') ORDER BY message_id LIMIT 5
--- a null that takes its type from beside it
--: rows m1 m1 m2 m2
SELECT data, attributes, message_id, NULL AS ordering_key FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT data, attributes, message_id, ordering_key FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
