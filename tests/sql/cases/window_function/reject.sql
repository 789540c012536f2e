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
