--- two columns as a value
--: codes subquery_columns
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = (SELECT key, value FROM UNNEST(attributes))
--- two columns after in
--: codes subquery_columns
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (SELECT key, value FROM UNNEST(attributes))
--- a neighbour in from
--: codes column_unknown
SELECT m.* FROM backup.messages m, (SELECT key FROM UNNEST(m.attributes)) WHERE _PARTITIONDATE = '2024-01-01'
--- recursion
--: codes clause_not_allowed
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a statement in a cte
--: codes statement_not_allowed
WITH x AS (DELETE FROM backup.messages WHERE TRUE) SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a statement in a subquery
--: codes syntax
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (DROP TABLE backup.messages)
--- a comma after the last cte
--: codes syntax
WITH a AS (SELECT 1 AS x), SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
