--- a tier among the attributes, by a subquery on the right of IN
--: rows m5
SELECT data, attributes, message_id FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-02' AND 'member' IN (SELECT value FROM UNNEST(attributes) WHERE key = 'type')

--- messages without an attribute, by a LEFT JOIN
--: rows m4
SELECT m.* FROM backup.messages m LEFT JOIN UNNEST(m.attributes) a ON a.key = 'type' WHERE m._PARTITIONDATE = '2024-01-02' AND a.key IS NULL

--- a number in the payload, compared as NUMERIC
--: rows m2
SELECT data, attributes, message_id FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-01' AND CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.total') AS NUMERIC) > 50

--- items of an array in the payload
--: rows m1
SELECT data, attributes, message_id FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-01' AND EXISTS (SELECT 1 FROM UNNEST(JSON_QUERY_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(data), '$.items')) i WHERE STRING(PARSE_JSON(i)) = 'a')

--- the first of each topic, by a named window
--: rows m3 m5
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'
QUALIFY RANK() OVER w = 1 WINDOW w AS (PARTITION BY topic ORDER BY publish_time)

--- the newest of each id in the payload, as a struct
--: rows m2 m5 m7 m8
SELECT latest.* FROM (
  SELECT ARRAY_AGG(m ORDER BY publish_time DESC LIMIT 1)[OFFSET(0)] AS latest FROM backup.messages m
  WHERE _PARTITIONDATE BETWEEN '2024-01-01' AND '2024-01-05' AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') IS NOT NULL
  GROUP BY JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id'))

--- not among those that failed
--: rows m3 m4
WITH bad AS (SELECT message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND topic = 'members')
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND message_id NOT IN (SELECT message_id FROM bad)

--- what has no twin a day later
--: rows m3 m4
SELECT a.* FROM backup.messages a LEFT JOIN backup.messages b ON a.topic = b.topic AND b._PARTITIONDATE = '2024-01-03'
WHERE a._PARTITIONDATE = '2024-01-02' AND b.message_id IS NULL

--- an attribute that changes its value
--: rows m3 m4 m5
SELECT data, ARRAY(SELECT AS STRUCT key, IF(key = 'type', 'fixed', value) AS value FROM UNNEST(attributes)) AS attributes, message_id
FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'

--- attributes of two types of topic
--: rows m5
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND topic LIKE ANY ('mem%', 'prod%')

--- pairs of columns among pairs of values
--: rows m3 m5
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND (topic, message_id) IN (('orders', 'm3'), ('members', 'm5'))

--- the week, in another time zone
--: rows m3 m4 m5
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND EXTRACT(DAYOFWEEK FROM publish_time AT TIME ZONE 'Europe/Stockholm') = 3

--- every third, as before each time
--: rows m4
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND MOD(LENGTH(message_id) + ASCII(SUBSTR(message_id, 2)), 3) = 0

--- a chain of pipes with a computed column
--: rows m5
FROM backup.messages
|> WHERE _PARTITIONDATE = '2024-01-02' AND topic = 'members'
|> EXTEND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') AS id
|> WHERE id = '5'
|> SELECT data, attributes, message_id
|> ORDER BY message_id
|> LIMIT 10

--- wanted ids beside the query
--: rows m3 m5
SELECT m.* FROM backup.messages AS m JOIN UNNEST([STRUCT('m3' AS id, 'orders' AS topic), STRUCT('m5', 'members')]) AS wanted
  ON m.message_id = wanted.id AND m.topic = wanted.topic WHERE m._PARTITIONDATE = '2024-01-02'

--- two windows in one query
--: rows m3 m8
(SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND topic = 'orders' ORDER BY publish_time LIMIT 1)
UNION ALL (SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-05')
