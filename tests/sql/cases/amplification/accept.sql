--- a few copies
--: rows m1 m1 m1 m2 m2 m2
SELECT data, attributes, message_id FROM backup.messages, UNNEST(GENERATE_ARRAY(1, 3)) AS n WHERE _PARTITIONDATE = '2024-01-01'
--- listed copies
--: rows m1 m1 m2 m2
SELECT data, attributes, message_id FROM backup.messages CROSS JOIN UNNEST(['a', 'b']) AS n WHERE _PARTITIONDATE = '2024-01-01'
