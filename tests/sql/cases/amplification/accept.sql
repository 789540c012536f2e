--- a few copies
--: rows m1 m1 m1 m2 m2 m2
SELECT data, attributes, message_id FROM backup.messages, UNNEST(GENERATE_ARRAY(1, 3)) AS n WHERE _PARTITIONDATE = '2024-01-01'
--- listed copies
--: rows m1 m1 m2 m2
SELECT data, attributes, message_id FROM backup.messages CROSS JOIN UNNEST(['a', 'b']) AS n WHERE _PARTITIONDATE = '2024-01-01'

--- an array of ids that is joined by an equality
--: rows m3 m4 m5
SELECT m.* FROM backup.messages m
JOIN UNNEST((SELECT ARRAY_AGG(message_id) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02')) AS id ON m.message_id = id
WHERE m._PARTITIONDATE = '2024-01-02'

--- the newest of each topic, gathered and laid out again
--: rows m5 m8
WITH g AS (
  SELECT topic, ARRAY_AGG(STRUCT(data, attributes, message_id) ORDER BY publish_time DESC LIMIT 1) AS latest
  FROM backup.messages WHERE _PARTITIONDATE BETWEEN '2024-01-01' AND '2024-01-05' AND topic IN ('orders', 'members')
    AND message_id != 'm6'
  GROUP BY topic)
SELECT x.data, x.attributes, x.message_id FROM g, UNNEST(g.latest) AS x

--- groups give back what they took
--: rows m3 m4
WITH g AS (
  SELECT message_id, ARRAY_AGG(STRUCT(data, attributes)) AS parts
  FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND topic = 'orders' GROUP BY message_id)
SELECT x.data, x.attributes, g.message_id FROM g, UNNEST(g.parts) AS x

--- what the data lists, one message each
--: rows m1 m1
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) AS item WHERE _PARTITIONDATE = '2024-01-01'

--- what the data lists, and lists in what it lists
--: rows
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(JSON_QUERY_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) AS item, UNNEST(JSON_QUERY_ARRAY(item, '$.parts')) AS part, UNNEST(JSON_QUERY_ARRAY(part, '$.parts')) AS piece WHERE _PARTITIONDATE = '2024-01-01'

--- what the data lists with an attribute
--: rows m1 m1
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) AS item, UNNEST(m.attributes) AS a WHERE _PARTITIONDATE = '2024-01-01' AND a.key = 'type'

--- two lists of the data, both limited
--: rows m1 m1 m1 m1
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(ARRAY_SLICE(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items'), 0, 9)) AS a, UNNEST(ARRAY(SELECT i FROM UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) i LIMIT 5)) AS b WHERE _PARTITIONDATE = '2024-01-01'

--- two lists of the data where LIMIT cuts the result
--: rows m1
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) AS a, UNNEST(JSON_VALUE_ARRAY(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.items')) AS b WHERE _PARTITIONDATE = '2024-01-01' LIMIT 1

--- a list that is written out of what the data says
--: rows m1 m1 m2 m2
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST([STRUCT('id' AS k, JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.id') AS v), STRUCT('total', JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(m.data), '$.total'))]) AS p, UNNEST(SPLIT(p.v, '$')) WHERE _PARTITIONDATE = '2024-01-01'
