--- nulls where they may stand
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic IS DISTINCT FROM NULL AND COALESCE(NULL, topic) = 'orders' AND (topic IN ('orders', NULL) OR NULL) AND 1 << 1 = 2
