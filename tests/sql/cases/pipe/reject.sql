--- no bound
--: codes window_missing
FROM backup.messages |> WHERE topic = 'orders'
--- a bound after a limit
--: codes pipe_not_allowed
FROM backup.messages |> LIMIT 10 |> WHERE _PARTITIONDATE = '2024-01-01'
--- an aggregate
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> AGGREGATE COUNT(*) GROUP BY topic
--- a call
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> CALL ops.steal()
--- set
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> SET data = b'x'
--- drop
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> DROP topic
--- a union
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> UNION ALL (SELECT * FROM ops.secrets)
--- a pivot
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> PIVOT (COUNT(*) FOR topic IN ('orders'))
--- an export
--: codes pipe_not_allowed
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> EXPORT DATA OPTIONS (uri = 'gs://x/*')
--- a filter before a full join
--: codes pipe_not_allowed
FROM backup.messages a |> WHERE _PARTITIONDATE = '2024-01-01' |> FULL JOIN backup.messages b ON a.message_id = b.message_id
--- another table in a join
--: codes table_not_allowed
FROM backup.messages a |> WHERE _PARTITIONDATE = '2024-01-01' |> JOIN ops.secrets s ON a.message_id = s.id |> SELECT a.data, a.attributes, a.message_id
--- a limit without a pipe
--: codes syntax
FROM backup.messages |> WHERE _PARTITIONDATE = '2024-01-01' |> ORDER BY publish_time LIMIT 1
