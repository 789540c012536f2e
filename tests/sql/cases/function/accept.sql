--- texts
--: rows m1
SELECT *, UPPER(topic) AS a, SUBSTR(topic, 2, 3) AS b, LPAD(message_id, 5, '0') AS c, SPLIT(topic, 'd')[SAFE_OFFSET(1)] AS d, TRIM(topic) AS e, CONCAT(topic, '-', message_id) AS f, STRPOS(topic, 'd') AS g FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND REPLACE(message_id, 'm', 'x') = 'x1'
--- times
--: rows m1 m2
SELECT *, TIMESTAMP_DIFF(ingest_time, publish_time, SECOND) AS a, FORMAT_TIMESTAMP('%Y-%m-%d %H:%M', publish_time, 'Europe/Stockholm') AS b, EXTRACT(HOUR FROM publish_time AT TIME ZONE 'Asia/Tokyo') AS c, UNIX_MICROS(publish_time) AS d, DATE_DIFF(DATE(publish_time), DATE '2023-12-31', DAY) AS e FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND EXTRACT(YEAR FROM publish_time) = 2024
--- numbers
--: rows m1 m2
SELECT *, ABS(-1) AS a, MOD(7, 3) AS b, DIV(7, 2) AS c, ROUND(2.5) AS d, SAFE_DIVIDE(1, 0) AS e, GREATEST(1, 2, 3) AS f, 7 / 2 AS g, 7 + 2 * 3 - 1 AS h, 5 & 3 | 8 ^ 1 AS i, 1 << 3 AS j FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- conditions
--: rows m1 m2
SELECT *, IF(topic = 'orders', 'o', 'x') AS a, CASE topic WHEN 'orders' THEN 1 ELSE 2 END AS b, IFNULL(ordering_key, '') AS c, NULLIF(topic, 'x') AS d, COALESCE(NULL, topic) AS e FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- what the lake can't do is still allowed
--: lake no
SELECT *, FARM_FINGERPRINT(message_id) AS h, NET.HOST(topic) AS host FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a sample by chance
--: lake sample
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND RAND() < 2
--- like any
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic LIKE ANY ('ord%', 'x%')
--- is distinct from
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND ordering_key IS DISTINCT FROM 'x' AND topic IS NOT DISTINCT FROM 'orders'
--- tuples compared
--: rows m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND (topic, message_id) IN (('orders', 'm2'), ('members', 'm1'))
--- structs compared
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND STRUCT(topic, message_id) = ('orders', 'm1')
--- weeks
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND EXTRACT(WEEK FROM publish_time) = 0 AND EXTRACT(ISOWEEK FROM publish_time) = 1 AND EXTRACT(WEEK(MONDAY) FROM publish_time) = 1

--- an error has whatever type is wanted of it
--: rows m3 m4 m5
SELECT IF(BYTE_LENGTH(data) > 1000000, ERROR('too large'), data) AS data, attributes, message_id
FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-02' AND CASE topic WHEN 'nobody' THEN ERROR('no such topic') ELSE TRUE END

--- SAFE. gives NULL where the function itself would say that it fails
--: rows m3 m4 m5
SELECT data, attributes, message_id FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-02' AND SAFE.SUBSTR(topic, 1, -1) IS NULL AND SAFE.SQRT(-1) IS NULL
  AND SAFE.SUBSTR('error(', 1, 2) || ')' = 'er)'
--- dates and times of every making
--: rows m1 m2
SELECT *, DATE(2024, 1, 2) AS a, DATE(publish_time, 'Europe/Stockholm') AS b, DATETIME(_PARTITIONDATE, TIME '10:00:00') AS c, DATETIME(2024, 1, 1, 0, 0, 0) AS d, TIME(10, 1, 1) AS e, TIMESTAMP('2024-01-01', 'UTC') AS f, TIMESTAMP(_PARTITIONDATE) AS g, DATE_TRUNC(_PARTITIONDATE, MONTH) AS h FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
