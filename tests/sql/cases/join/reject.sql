--- every row with every row
--: codes join_unlinked
SELECT a.* FROM backup.messages a, backup.messages b WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a cross join
--: codes join_unlinked
SELECT a.* FROM backup.messages a CROSS JOIN backup.messages b WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a condition that links nothing
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON TRUE WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link of a column to itself
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = a.message_id WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a natural join
--: codes clause_not_allowed
SELECT * FROM backup.messages NATURAL JOIN backup.messages
--- a name twice
--: codes column_missing column_missing column_missing name_ambiguous
SELECT message_id AS x FROM backup.messages a JOIN backup.messages b ON a.message_id = b.message_id WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- an inequality only
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.publish_time < b.publish_time WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a cross join with a condition
--: codes join_not_allowed
SELECT a.* FROM backup.messages a CROSS JOIN backup.messages b ON a.message_id = b.message_id WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
