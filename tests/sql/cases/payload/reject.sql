--- JSON of bytes
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND JSON_VALUE(data, '$.id') = '1'
--- a text function over JSON
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND UPPER(PARSE_JSON('1')) = '1'
--- bytes against text
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND data = message_id
--- a number against text
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = 1
