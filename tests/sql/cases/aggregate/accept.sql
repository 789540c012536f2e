--- one message of each id
--: rows m1 m2
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- the latest of an array
--: rows m5 m6 m7 m8
SELECT latest.data, latest.attributes, latest.message_id FROM (SELECT ARRAY_AGG(m ORDER BY publish_time DESC LIMIT 1)[OFFSET(0)] AS latest FROM (SELECT data, attributes, message_id, publish_time, topic, ordering_key FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-02') AS m GROUP BY topic, message_id = 'm5' HAVING COUNT(*) > 0)
--- grouped by an ordinal
--: rows m1 m2
SELECT message_id, MIN(data) AS data, ANY_VALUE(attributes) AS attributes FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY 1
--- grouped by an alias
--: rows m1
SELECT MIN(message_id) AS message_id, LOWER(topic) AS kind, MAX(data) AS data, ANY_VALUE(attributes) AS attributes FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY kind
--- having
--: rows m8
SELECT message_id, MAX(data) AS data, ANY_VALUE(attributes) AS attributes FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' GROUP BY message_id HAVING MAX(publish_time) > '2024-01-04'
--- grouped by the alias of a correlated subquery
--: rows m1 m3 m5 m7
SELECT (SELECT value FROM UNNEST(attributes) WHERE key = 'type') AS event, COUNT(*) AS n, ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' GROUP BY event HAVING event IS NOT NULL ORDER BY event
--- grouped by the number of a correlated subquery in an expression
--: rows m1 m2 m3
SELECT IFNULL((SELECT value FROM UNNEST(attributes) WHERE key = 'region'), 'none') AS region, ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' GROUP BY 1
--- ordered and filtered by the alias of an aggregate
--: rows m1
SELECT topic, COUNT(*) AS n, ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, MIN(message_id) AS message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' GROUP BY topic HAVING n > 2 ORDER BY n DESC, LOWER(topic)
