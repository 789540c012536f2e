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
--- a message_id under the same name through a subquery, a window and a cast
--: rows m1 m2
SELECT data, attributes, CAST(id AS STRING) AS message_id FROM (SELECT *, message_id AS id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' QUALIFY ROW_NUMBER() OVER (PARTITION BY message_id ORDER BY publish_time) = 1)
--- a message_id out of rows that are laid out again
--: rows m1 m2
SELECT r.data, r.attributes, r.message_id FROM UNNEST((SELECT ARRAY_AGG(STRUCT(data, attributes, message_id)) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01')) AS r
--- the greatest and the least of each topic
--: rows m1 m2
SELECT MIN(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY topic
UNION ALL SELECT MIN(data), ANY_VALUE(attributes), MAX(message_id) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY topic
--- a message_id of a join by using, from either side
--: rows m1 m2
SELECT m.data, m.attributes, message_id FROM (SELECT UPPER(LOWER(message_id)) AS message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') AS f RIGHT JOIN backup.messages m USING (message_id) WHERE m._PARTITIONDATE = '2024-01-01'
