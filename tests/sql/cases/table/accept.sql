--- backticks around everything
--: rows m1 m2
SELECT * FROM `backup.messages` WHERE _PARTITIONDATE = '2024-01-01'
--- backticks around each part
--: rows m1 m2
SELECT * FROM `backup`.`messages` WHERE _PARTITIONDATE = '2024-01-01'
--- the project in front
--: rows m1 m2
SELECT * FROM shop.backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the project in backticks
--: rows m1 m2
SELECT * FROM `shop`.backup.messages AS m WHERE m._PARTITIONDATE = '2024-01-01'
--- project and dataset in backticks
--: rows m1 m2
SELECT m.* FROM `shop.backup`.messages m WHERE _PARTITIONDATE = '2024-01-01'
--- everything with the project in backticks
--: rows m1 m2
SELECT messages.* FROM `shop.backup.messages` WHERE messages._PARTITIONDATE = '2024-01-01'
--- a cte in front
--: rows m1
WITH recent AS (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') SELECT * FROM recent WHERE message_id = 'm1'
--- ctes that build on each other
--: rows m2
WITH a AS (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'), b AS (SELECT * FROM a WHERE message_id != 'm1') SELECT * FROM b
--- a cte named like the archive's last part
--: rows m1 m2
WITH messages AS (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') SELECT * FROM messages
--- a query in from
--: rows m1 m2
SELECT q.* FROM (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS q
--- another allowed table
--: lake no
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (SELECT c.id FROM ops.wanted AS c)
--- a percentage of the table
--: lake sample
SELECT * FROM backup.messages TABLESAMPLE SYSTEM (100 PERCENT) WHERE _PARTITIONDATE = '2024-01-01'
