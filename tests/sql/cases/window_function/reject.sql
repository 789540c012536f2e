--- in where
--: codes window_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND ROW_NUMBER() OVER (ORDER BY publish_time) = 1
--- without over
--: codes function_arguments
SELECT *, ROW_NUMBER() AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a window that is not there
--: codes name_unknown
SELECT *, RANK() OVER w AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- over a scalar
--: codes function_arguments
SELECT *, UPPER(topic) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- windows that name each other
--: codes name_unknown
SELECT *, SUM(1) OVER a AS s FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' WINDOW a AS (b), b AS (a)
--- a rank without an order
--: codes window_not_allowed
SELECT *, RANK() OVER (PARTITION BY topic) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a first value without an order
--: codes window_not_allowed
SELECT *, FIRST_VALUE(topic) OVER () AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame that a row number has no use for
--: codes window_not_allowed
SELECT *, ROW_NUMBER() OVER (ORDER BY publish_time ROWS 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame that a lag has no use for
--: codes window_not_allowed
SELECT *, LAG(topic) OVER (ORDER BY publish_time ROWS 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an order for a percentile
--: codes window_not_allowed
SELECT *, PERCENTILE_CONT(LENGTH(topic), 0.5) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- distinct values in an order
--: codes window_not_allowed
SELECT *, COUNT(DISTINCT topic) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an order in brackets and over
--: codes window_not_allowed
SELECT *, STRING_AGG(topic ORDER BY topic) OVER () AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a limit in brackets and over
--: codes window_not_allowed
SELECT *, ARRAY_AGG(topic LIMIT 1) OVER () AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame from a column
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS LENGTH(topic) PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame by less than nothing
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS -1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame by null
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS NULL PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame by a fraction
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS 1.5 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame that ends before it begins
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS BETWEEN CURRENT ROW AND 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame that begins after the end
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS BETWEEN UNBOUNDED FOLLOWING AND UNBOUNDED FOLLOWING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a frame that only begins later
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY publish_time ROWS 1 FOLLOWING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a range over texts
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY topic RANGE 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a range over two keys
--: codes window_not_allowed
SELECT *, COUNT(*) OVER (ORDER BY LENGTH(topic), LENGTH(data) RANGE 1 PRECEDING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a lag from a column
--: codes function_arguments
SELECT *, LAG(topic, LENGTH(topic)) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a lag by null
--: codes function_arguments
SELECT *, LAG(topic, NULL) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- the zeroth value
--: codes function_arguments
SELECT *, NTH_VALUE(topic, 0) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- no tiles
--: codes function_arguments
SELECT *, NTILE(0) OVER (ORDER BY publish_time) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- more than all percent
--: codes function_arguments
SELECT *, PERCENTILE_CONT(LENGTH(topic), 1.5) OVER () AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a window without a table
--: codes window_not_allowed
SELECT *, (SELECT ROW_NUMBER() OVER ()) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
