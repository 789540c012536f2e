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
--- a link by a topic, which is the same for every message of it
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.topic = b.topic WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link by a day
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a._PARTITIONDATE = b._PARTITIONDATE WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link by nothing times something
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON LENGTH(a.data) * 0 = LENGTH(b.data) * 0 WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link that names both on one side
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON CONCAT(a.message_id, SUBSTR(b.message_id, 1, 0)) = a.message_id WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link by whether there is something
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b ON (a.data IS NULL) = (b.data IS NULL) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link by an ordering key, which most messages have not
--: codes join_unlinked
SELECT a.* FROM backup.messages a JOIN backup.messages b USING (ordering_key) WHERE a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- a link of one of two keys that rows are grouped by
--: codes join_unlinked
SELECT m.* FROM backup.messages m JOIN (SELECT topic, ordering_key, COUNT(*) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY topic, ordering_key) AS g USING (topic) WHERE m._PARTITIONDATE = '2024-01-01'
--- a link by one id that all rows are given
--: codes join_unlinked
SELECT a.* FROM (SELECT *, (SELECT MIN(topic) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS one FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') a JOIN (SELECT (SELECT MIN(topic) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS one FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') b ON a.one = b.one
--- a third one that hangs on two that are not linked
--: codes join_unlinked
SELECT a.* FROM backup.messages a, backup.messages b, backup.messages c WHERE c.message_id = a.topic || b.topic AND a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01' AND c._PARTITIONDATE = '2024-01-01'
