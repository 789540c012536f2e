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
--- attributes whose fields are spelt in other letters
--: codes column_type
SELECT data, ARRAY(SELECT AS STRUCT key AS Key, value AS VALUE FROM UNNEST(attributes)) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id that is written out
--: codes message_id_computed
SELECT data, attributes, 'forged' AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id that is made up
--: codes message_id_computed
SELECT data, attributes, GENERATE_UUID() AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id that is changed
--: codes message_id_computed
SELECT data, attributes, LOWER(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id with something behind it
--: codes message_id_computed
SELECT data, attributes, message_id || '-2' AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another column as message_id
--: codes message_id_computed
SELECT data, attributes, ordering_key AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id by condition
--: codes message_id_computed
SELECT data, attributes, IF(topic = 'x', 'forged', message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id by CASE
--: codes message_id_computed
SELECT data, attributes, CASE WHEN topic = 'x' THEN message_id ELSE 'forged' END AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id or something else
--: codes message_id_computed
SELECT data, attributes, COALESCE(message_id, 'forged') AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id replaced in a star
--: codes message_id_computed
SELECT * REPLACE ('forged' AS message_id) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id made in a CTE
--: codes message_id_computed
WITH m AS (SELECT data, attributes, CONCAT(message_id, '!') AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') SELECT * FROM m
--- a message_id made in one part of a union
--: codes message_id_computed
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT data, attributes, 'forged' FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id that comes last in a union
--: codes message_id_computed
SELECT data, attributes, topic AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the greatest of something made
--: codes message_id_computed
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MAX(UPPER(message_id)) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY topic
--- a message_id from an element of a list that is written out
--: codes message_id_computed
SELECT data, attributes, [message_id, 'forged'][OFFSET(1)] AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id from a parameter
--: codes message_id_computed
--: params {"ids": {"type": "ARRAY<STRING>", "value": ["m1"]}}
SELECT data, attributes, id AS message_id FROM backup.messages m JOIN UNNEST(@ids) AS id ON m.message_id = id WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id in a struct that is written out
--: codes message_id_computed
SELECT data, attributes, STRUCT('forged' AS message_id).message_id AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the row before, or something else
--: codes message_id_computed
SELECT data, attributes, LAG(message_id, 1, 'forged') OVER (ORDER BY publish_time) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a message_id of an outer side that may be made
--: codes message_id_computed
SELECT m.data, m.attributes, message_id FROM (SELECT UPPER(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') f LEFT JOIN backup.messages m USING (message_id) WHERE m._PARTITIONDATE = '2024-01-01'
