--- who runs it
--: codes function_not_allowed
SELECT *, SESSION_USER() AS u FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a function of the deployment
--: codes function_not_allowed
SELECT *, ops.decode(data) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a function of another project
--: codes function_not_allowed
SELECT *, shop.ops.decode(data) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a function in backticks
--: codes function_not_allowed
SELECT *, `ops.decode`(data) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- keys
--: codes function_not_allowed
SELECT *, KEYS.NEW_KEYSET('AEAD_AES_GCM_256') AS k FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- decryption
--: codes function_not_allowed
SELECT *, AEAD.DECRYPT_STRING(b'k', data, '') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- another database
--: codes function_not_allowed
SELECT *, EXTERNAL_QUERY('c', 'SELECT 1') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a model
--: codes function_not_allowed
SELECT *, AI.GENERATE('hello') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a model of old
--: codes function_not_allowed
SELECT *, ML.NGRAMS(['a'], [1]) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a function that does not exist
--: codes function_not_allowed
SELECT *, LOAD_FILE('/etc/passwd') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a function of the lake's engine
--: codes function_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND read_text('/etc/passwd') = 'x'
--- a setting of the lake's engine
--: codes function_not_allowed
SELECT *, getenv('HOME') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a safe aggregate
--: codes function_not_allowed
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, SAFE.MAX(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- too few arguments
--: codes function_arguments
SELECT *, SUBSTR(topic) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- too many arguments
--: codes function_arguments
SELECT *, UPPER(topic, topic) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- distinct in a scalar
--: codes function_arguments
SELECT *, UPPER(DISTINCT topic) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a lambda
--: codes function_arguments
SELECT *, ARRAY_LENGTH(x -> x) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a date part that is none
--: codes date_part
SELECT *, TIMESTAMP_TRUNC(publish_time, FORTNIGHT) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an argument of another type
--: codes type_mismatch
SELECT *, LENGTH(1) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a type that is none
--: codes type_not_allowed
SELECT *, CAST(topic AS GEOMETRY) AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a model as an argument
--: codes function_not_allowed
SELECT *, SEARCH(MODEL ops.x, 'a') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'

--- an error bounds nothing
--: codes window_missing
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= ERROR('2024-01-02')

--- a number that FLOAT64 can't hold
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND 1e999 > 1
--- the same fault where a key is looked at twice
--: codes function_arguments
SELECT *, COUNT(*) OVER (ORDER BY LENGTH() RANGE 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the same fault in a group and its alias
--: codes function_arguments
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, ANY_VALUE(message_id) AS message_id, LENGTH() AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY n
--- a date as a time zone
--: codes type_mismatch
SELECT *, DATE(publish_time, _PARTITIONDATE) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone for a date
--: codes type_mismatch
SELECT *, DATE(_PARTITIONDATE, 'UTC') AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a date of two numbers
--: codes type_mismatch
SELECT *, DATE(2024, 1) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone as a time of day
--: codes type_mismatch
SELECT *, DATETIME(_PARTITIONDATE, 'UTC') AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone for a moment
--: codes type_mismatch
SELECT *, TIMESTAMP(publish_time, 'UTC') AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a number as a text without a cast
--: codes type_mismatch
SELECT *, STRING(1) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a date cut in a time zone
--: codes type_mismatch
SELECT *, DATE_TRUNC(_PARTITIONDATE, DAY, 'UTC') AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a JSON path of the message's own
--: codes function_arguments
SELECT *, JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), CONCAT('$.', ordering_key)) AS v FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a JSON path from a subquery, under SAFE
--: codes function_arguments
SELECT *, SAFE.JSON_QUERY_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(data), (SELECT '$.a')) AS v FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the second JSON path of JSON_SET
--: codes function_arguments
SELECT *, JSON_SET(PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(data)), '$.a', 1, ordering_key, 2) AS v FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the last JSON path of JSON_REMOVE
--: codes function_arguments
SELECT *, JSON_REMOVE(PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(data)), '$.a', topic) AS v FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
