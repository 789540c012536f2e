--- the three columns
--: rows m1 m2 m3 m4 m5 m6 m7 m8
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'
--- everything
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- everything but
--: rows m1 m2
SELECT * EXCEPT (subscription, ingest_time) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- everything with one column replaced
--: rows m1 m2
SELECT * REPLACE (LOWER(topic) AS topic) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- extra columns are allowed
--: rows m1 m2
SELECT data, attributes, message_id, topic, publish_time, ordering_key, _PARTITIONTIME AS partition_time, 1 AS one FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a trailing comma and a semicolon
--: rows m1 m2
SELECT data, attributes, message_id, FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01';
--- mended data
--: rows m1 m2
SELECT CAST(REPLACE(SAFE_CONVERT_BYTES_TO_STRING(data), 'total', 'sum') AS BYTES) AS data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an attribute more
--: rows m1 m2
SELECT data, ARRAY_CONCAT(attributes, [STRUCT('repaired' AS key, 'yes' AS value)]) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes built again
--: rows m1 m2
SELECT data, ARRAY(SELECT AS STRUCT a.key, UPPER(a.value) AS value FROM UNNEST(attributes) AS a WHERE a.key != 'region' ORDER BY a.key) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- typed struct constructor for attributes
--: rows m1 m2
SELECT data, [STRUCT<key STRING, value STRING>('a', 'b')] AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- upper case names
--: rows m1 m2
SELECT DATA, Attributes, MESSAGE_ID FROM backup.messages WHERE _partitiondate = '2024-01-01'
--- distinct
--: rows m1 m2
SELECT DISTINCT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- ordered and cut
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' ORDER BY publish_time DESC, message_id LIMIT 1
--- cut with an offset
--: rows m2
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' ORDER BY message_id LIMIT 1 OFFSET 1
--- order by an ordinal
--: rows m1
SELECT message_id, data, attributes FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' ORDER BY 1 LIMIT 1
--- an empty array where there is none
--: rows m1 m2
SELECT IFNULL(data, b'') AS data, IFNULL(attributes, []) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- attributes by condition
--: rows m1 m2
SELECT data, IF(ARRAY_LENGTH(attributes) > 1, attributes, [STRUCT('none' AS k, '' AS v)]) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
