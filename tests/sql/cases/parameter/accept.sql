--- of every type
--: rows m1
--: params {"s": {"type": "STRING", "value": "m1"}, "n": {"type": "INT64", "value": 10}, "f": {"type": "FLOAT64", "value": 0.5}, "b": {"type": "BOOL", "value": true}, "d": {"type": "DATE", "value": "2024-01-01"}, "t": {"type": "TIMESTAMP", "value": "2024-01-01T00:00:00Z"}, "ids": {"type": "ARRAY<STRING>", "value": ["m1", "m2"]}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = @d AND message_id = @s AND LENGTH(data) > @n AND @f < 1 AND @b AND publish_time >= @t AND message_id IN UNNEST(@ids)
--- in another case of letters
--: rows m1
--: params {"Id": {"type": "STRING", "value": "m1"}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = @ID
--- one that is not used
--: rows m1 m2
--: params {"unused": {"type": "STRING", "value": "m1"}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- as a limit
--: rows m1
--: params {"n": {"type": "INT64", "value": 1}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' ORDER BY message_id LIMIT @n
--- text that is SQL
--: rows
--: params {"s": {"type": "STRING", "value": "' OR 1=1 --"}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id = @s
--- a parameter after an alias with an apostrophe
--: rows m1 m2
--: params {"t": {"type": "STRING", "value": "orders"}}
SELECT *, 1 AS `it's` FROM backup.messages WHERE topic = @t AND _PARTITIONDATE = '2024-01-01'
