--- one that is not given
--: codes parameter_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = @id
--- one as a table
--: codes syntax
--: params {"t": {"type": "STRING", "value": "backup.messages"}}
SELECT * FROM @t WHERE _PARTITIONDATE = '2024-01-01'
--- a number against text
--: codes type_mismatch
--: params {"id": {"type": "INT64", "value": 1}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = @id
