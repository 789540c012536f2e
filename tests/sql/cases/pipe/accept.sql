--- where and select
--: rows m1 m2
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> SELECT data, attributes, message_id
--- extend
--: rows m1
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> EXTEND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') AS id |> WHERE id = '1'
--- order and limit
--: rows m2
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> ORDER BY publish_time DESC |> LIMIT 1
--- a name and a join
--: rows m1 m2
FROM backup.messages AS a |> WHERE a._PARTITIONDATE = '2024-01-01' |> JOIN (SELECT message_id AS id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS b ON a.message_id = b.id |> SELECT a.data, a.attributes, a.message_id
--- after a select
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' |> WHERE message_id = 'm1'
--- as
--: rows m1 m2
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> AS m |> SELECT m.data, m.attributes, m.message_id
