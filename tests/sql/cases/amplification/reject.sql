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
