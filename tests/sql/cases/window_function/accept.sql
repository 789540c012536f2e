--- the latest of each topic by qualify
--: rows m5 m6 m7 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND topic != 'x' QUALIFY ROW_NUMBER() OVER (PARTITION BY topic, DATE(publish_time) ORDER BY publish_time DESC) = 1 AND _PARTITIONDATE > '2024-01-02' OR topic = 'members'
--- the latest of each topic by a subquery
--: rows m6 m7 m8
SELECT * EXCEPT (n) FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY topic ORDER BY publish_time DESC) AS n FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01') WHERE n = 1
--- a named window
--: rows m1
SELECT *, RANK() OVER w AS place FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' QUALIFY place = 1 WINDOW w AS (ORDER BY publish_time)
--- the one before
--: rows m1
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' QUALIFY LAG(message_id) OVER (ORDER BY publish_time) IS NULL
--- a running sum
--: rows m1 m2
SELECT *, SUM(LENGTH(data)) OVER (ORDER BY publish_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS bytes FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an aggregate over rows
--: rows m1 m2
SELECT *, COUNT(*) OVER (PARTITION BY topic) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- frames of every kind
--: rows m1 m2
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a, COUNT(*) OVER (ORDER BY LENGTH(topic) RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS b, SUM(1) OVER (ORDER BY publish_time ROWS UNBOUNDED PRECEDING) AS c, LAST_VALUE(topic) OVER (ORDER BY publish_time ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS d, COUNT(DISTINCT topic) OVER (PARTITION BY region_of) AS e FROM (SELECT *, (SELECT value FROM UNNEST(attributes) WHERE key = 'region') AS region_of FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01')
