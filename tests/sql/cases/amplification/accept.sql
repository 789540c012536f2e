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
