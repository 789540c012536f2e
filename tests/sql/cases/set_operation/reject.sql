--- a different number of columns
--: codes set_operation_columns
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT data, attributes FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- columns of other types
--: codes set_operation_columns
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT message_id, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- mixed operations
--: codes set_operation_mixed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' EXCEPT DISTINCT SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a union without all or distinct
--: codes syntax
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- except all
--: codes clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' EXCEPT ALL SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a null that has become a number beside a text
--: codes set_operation_columns
SELECT data, attributes, x AS message_id FROM (SELECT *, NULL AS x FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') UNION ALL SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
