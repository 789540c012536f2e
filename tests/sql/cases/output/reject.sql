--- data is missing
--: codes column_missing
SELECT attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- all three are missing
--: codes column_missing column_missing column_missing
SELECT topic FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- data twice
--: codes column_duplicate
SELECT data, data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- data twice in two cases of letters
--: codes column_duplicate
SELECT data, DATA, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- star and a column again
--: codes column_duplicate
SELECT *, topic FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an unnamed column
--: codes column_unnamed
SELECT data, attributes, message_id, 1 + 1 FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- data as a string
--: codes column_type
SELECT SAFE_CONVERT_BYTES_TO_STRING(data) AS data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes as a string
--: codes column_type
SELECT data, TO_JSON_STRING(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes with other field names
--: codes column_type
SELECT data, ARRAY(SELECT AS STRUCT key AS k, value AS v FROM UNNEST(attributes)) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes with a number as value
--: codes column_type
SELECT data, ARRAY(SELECT AS STRUCT key, 1 AS value FROM UNNEST(attributes)) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes with one field more
--: codes column_type
SELECT data, ARRAY(SELECT AS STRUCT key, value, 1 AS n FROM UNNEST(attributes)) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- message_id as a number
--: codes column_type
SELECT data, attributes, 1 AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- message_id as NULL
--: codes column_type
SELECT data, attributes, NULL AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a value table of structs
--: codes output_value_table
SELECT AS STRUCT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a value table
--: codes output_value_table
SELECT AS VALUE STRUCT(data, attributes, message_id) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the row as one column
--: codes column_missing column_missing column_missing
SELECT m FROM backup.messages AS m WHERE _PARTITIONDATE = '2024-01-01'
--- a reserved name
--: codes column_reserved
SELECT *, _PARTITIONTIME FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a reserved name as alias
--: codes column_reserved
SELECT *, publish_time AS _PARTITIONTIME FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an order without a column
--: codes order_ordinal
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' ORDER BY 99
--- nothing is read
--: codes archive_not_read
SELECT b'x' AS data, [STRUCT('a' AS key, 'b' AS value)] AS attributes, 'm' AS message_id
--- a column that is not left out
--: codes column_unknown
SELECT * EXCEPT (nothing) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'

--- a publish_time that is none
--: codes column_type
SELECT data, attributes, message_id, FORMAT_TIMESTAMP('%F', publish_time) AS publish_time FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-02'
