--- a billion copies
--: codes row_amplification
SELECT data, attributes, message_id FROM backup.messages CROSS JOIN UNNEST(GENERATE_ARRAY(1, 1000000000)) WHERE _PARTITIONDATE = '2024-01-01'
--- copies by the thousand, twice
--: codes row_amplification
SELECT data, attributes, message_id FROM backup.messages, UNNEST(GENERATE_ARRAY(1, 1000)) AS a, UNNEST(GENERATE_ARRAY(1, 1000)) AS b WHERE _PARTITIONDATE = '2024-01-01'
--- copies hidden in a subquery
--: codes row_amplification row_amplification
SELECT data, attributes, message_id FROM backup.messages, (SELECT a FROM UNNEST(GENERATE_ARRAY(1, 9000)) AS a CROSS JOIN UNNEST(GENERATE_ARRAY(1, 9000)) AS b) WHERE _PARTITIONDATE = '2024-01-01'
--- as many as the message is long
--: codes row_amplification
SELECT data, attributes, message_id FROM backup.messages, UNNEST(GENERATE_ARRAY(1, LENGTH(data))) WHERE _PARTITIONDATE = '2024-01-01'
--- every attribute with every attribute, four times
--: codes row_amplification
SELECT data, attributes, message_id FROM backup.messages m, m.attributes a, m.attributes b, m.attributes c, m.attributes d WHERE _PARTITIONDATE = '2024-01-01'
--- a long text
--: codes row_amplification
SELECT CAST(REPEAT('x', 1000000000) AS BYTES) AS data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a padded text
--: codes row_amplification
SELECT CAST(LPAD('x', 1000000000) AS BYTES) AS data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- every day of a thousand years
--: codes row_amplification
SELECT data, attributes, message_id FROM backup.messages, UNNEST(GENERATE_DATE_ARRAY('1000-01-01', '9999-01-01')) WHERE _PARTITIONDATE = '2024-01-01'
--- doubled again and again
--: codes row_amplification
WITH a AS (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'), b AS (SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a UNION ALL SELECT * FROM a), c AS (SELECT * FROM b, UNNEST(GENERATE_ARRAY(1, 900)) AS n) SELECT * EXCEPT (n) FROM c UNION ALL SELECT * EXCEPT (n) FROM c

--- arrays put together are as long as all of them
--: codes row_amplification
SELECT m.* FROM backup.messages m, UNNEST(ARRAY_CONCAT(GENERATE_ARRAY(1, 10000), GENERATE_ARRAY(1, 10000)))
WHERE m._PARTITIONDATE = '2024-01-02'

--- a condition around an array does not make it shorter
--: codes row_amplification
SELECT m.* FROM backup.messages m, UNNEST(IF(TRUE, GENERATE_ARRAY(1, 10000), [])), UNNEST(COALESCE(GENERATE_ARRAY(1, 10000)))
WHERE m._PARTITIONDATE = '2024-01-02'

--- an array that comes out of a query is as long as it went in
--: codes row_amplification
SELECT m.* FROM backup.messages m, (SELECT STRUCT(GENERATE_ARRAY(1, 10000) AS a) AS s) x, UNNEST(x.s.a), UNNEST(x.s.a)
WHERE m._PARTITIONDATE = '2024-01-02'

--- a text in pieces is an array too
--: codes row_amplification
SELECT m.* FROM backup.messages m, UNNEST(SPLIT(REPEAT(REPEAT('a,', 10000), 10000))) WHERE m._PARTITIONDATE = '2024-01-02'

--- an array of all messages meets every message
--: codes join_unlinked
SELECT m.* FROM backup.messages m, UNNEST(ARRAY(SELECT message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'))
WHERE m._PARTITIONDATE = '2024-01-02'

--- an aggregated array of all messages meets every message
--: codes join_unlinked
WITH a AS (SELECT ARRAY_AGG(message_id) AS ids FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02')
SELECT m.* FROM backup.messages m, a, UNNEST(a.ids) WHERE m._PARTITIONDATE = '2024-01-02'

--- a window's array of all messages beside each of them
--: codes join_unlinked
SELECT m.data, m.attributes, m.message_id
FROM (SELECT *, ARRAY_AGG(message_id) OVER () AS ids FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02') m, UNNEST(m.ids)

--- CTEs that name the one before twice read the archive a thousand times
--: codes too_many_readings
WITH a AS (SELECT message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'),
b AS (SELECT x.message_id FROM a x JOIN a y USING (message_id)), c AS (SELECT x.message_id FROM b x JOIN b y USING (message_id)),
d AS (SELECT x.message_id FROM c x JOIN c y USING (message_id)), e AS (SELECT x.message_id FROM d x JOIN d y USING (message_id)),
f AS (SELECT x.message_id FROM e x JOIN e y USING (message_id)), g AS (SELECT x.message_id FROM f x JOIN f y USING (message_id)),
h AS (SELECT x.message_id FROM g x JOIN g y USING (message_id)), i AS (SELECT x.message_id FROM h x JOIN h y USING (message_id)),
j AS (SELECT x.message_id FROM i x JOIN i y USING (message_id)), k AS (SELECT x.message_id FROM j x JOIN j y USING (message_id))
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' AND message_id IN (SELECT message_id FROM k)

--- a message's own hex, three times
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(SPLIT(TO_HEX(m.data), '')) a, UNNEST(SPLIT(TO_HEX(m.data), '')) b, UNNEST(SPLIT(TO_HEX(m.data), '')) c WHERE _PARTITIONDATE = '2024-01-02'

--- a message's own hex, twice
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(SPLIT(TO_HEX(m.data), '')) a, UNNEST(SPLIT(TO_HEX(m.data), '')) b WHERE _PARTITIONDATE = '2024-01-02'

--- what an attribute says, in pieces, twice
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(SPLIT(m.attributes[OFFSET(0)].value, '')) a, UNNEST(SPLIT(m.attributes[OFFSET(0)].value, '')) b WHERE _PARTITIONDATE = '2024-01-02'

--- pieces of one piece, twice
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(JSON_QUERY_ARRAY(PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(m.data)), '$.items')) i, UNNEST(JSON_QUERY_ARRAY(i)) a, UNNEST(JSON_QUERY_ARRAY(i)) b WHERE _PARTITIONDATE = '2024-01-02'

--- pieces made in a subquery
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM (SELECT *, SPLIT(TO_HEX(data), '') AS p FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02') m, UNNEST(m.p) a, UNNEST(m.p) b

--- pieces of a repeated payload
--: codes row_amplification
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, UNNEST(SPLIT(REPEAT(TO_HEX(m.data), 100), '')) a WHERE _PARTITIONDATE = '2024-01-02'

--- every message of a topic with every one, out of the topic's array
--: codes row_amplification
SELECT a.data, a.attributes, a.message_id FROM (SELECT topic, ARRAY_AGG(STRUCT(data, attributes, message_id)) AS p FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' GROUP BY topic) g, UNNEST(g.p) a, UNNEST(g.p) b

--- all messages as one text, cut again
--: codes join_unlinked
SELECT m.* FROM backup.messages m, UNNEST(SPLIT((SELECT STRING_AGG(message_id) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'))) AS id WHERE m._PARTITIONDATE = '2024-01-02'

--- a long text that is written out, cut, twice
--: codes row_amplification
SELECT m.* FROM backup.messages m, UNNEST(SPLIT('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '')) a, UNNEST(SPLIT('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '')) b WHERE _PARTITIONDATE = '2024-01-02'
