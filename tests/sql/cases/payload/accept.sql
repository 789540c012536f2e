--- a field of the payload
--: rows m1 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') = '1'
--- a field as a number
--: rows m2
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND SAFE_CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.total') AS FLOAT64) > 50
--- a nested field
--: rows m5
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.tags.vip') = 'true'
--- an array inside
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND 'b' IN UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(data), '$.items'))
--- an element of an array
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.items[0]') = 'a'
--- a part as text
--: rows m5
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND JSON_QUERY(SAFE_CONVERT_BYTES_TO_STRING(data), '$.tags') = '{"vip":true}'
--- parsed, where it can be
--: rows m5
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND JSON_VALUE(SAFE.PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(data)), '$.email') LIKE '%@x.se'
--- parsed, by its fields
--: rows m5
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND STRING(SAFE.PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(data)).email) = 'å@x.se'
--- what is no text
--: rows m3
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND SAFE_CAST(data AS STRING) IS NULL
--- stray bytes are replaced
--: rows m3
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND SAFE_CONVERT_BYTES_TO_STRING(data) LIKE '\uFFFD%'
--- what is empty
--: rows m4
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND LENGTH(data) = 0
--- equal bytes
--: rows m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND data = b'not json'
--- bytes from a parameter
--: rows m6
--: params {"body": {"type": "BYTES", "value": "bm90IGpzb24="}}
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND data = @body
--- a digest
--: rows m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND TO_HEX(MD5(data)) = TO_HEX(MD5('not json'))
--- a regular expression
--: rows m1 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND REGEXP_CONTAINS(SAFE_CONVERT_BYTES_TO_STRING(data), r'"id":\s*1\b')
--- a piece of a regular expression
--: rows m2
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND REGEXP_EXTRACT(SAFE_CONVERT_BYTES_TO_STRING(data), r'"total":(\d+)') = '99'
--- a JSON null is no value
--: rows m7
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND topic = 'products' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.name') IS NULL
--- the start of the bytes
--: rows m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND STARTS_WITH(data, b'not')
--- a piece of the bytes
--: rows m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND SUBSTR(data, 5) = b'json'
--- base64
--: rows m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND TO_BASE64(data) = 'bm90IGpzb24='
