--- a column that is not there
--: codes column_unknown
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND nothing = 1
--- a field that is not there
--: codes column_unknown
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND attributes[OFFSET(0)].name = 'x'
--- an alias in where
--: codes column_unknown
SELECT *, LENGTH(data) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND n > 1
--- a text as a condition
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic
--- plus over texts
--: codes type_mismatch
SELECT *, topic + 1 AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a chain of comparisons
--: codes syntax
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND 1 < 2 < 3
--- an array in an array
--: codes type_mismatch
SELECT *, [[1]] AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an element of a text
--: codes type_mismatch
SELECT *, topic[OFFSET(0)] AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an integer that is too big
--: codes literal_invalid
SELECT *, 99999999999999999999 AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a percent sign as modulo
--: codes character_not_allowed
SELECT *, 5 % 2 AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a double colon cast
--: codes syntax
SELECT *, topic::STRING AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- ilike
--: codes syntax
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic ILIKE 'x'
--- a cast that does not exist
--: codes type_mismatch
SELECT *, CAST(attributes AS STRING) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a cast of JSON
--: codes type_mismatch
SELECT *, CAST(PARSE_JSON('1') AS INT64) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a table in brackets alone
--: codes syntax
SELECT * FROM (backup.messages) WHERE _PARTITIONDATE = '2024-01-01'
--- a filter without a table
--: codes aggregate_not_allowed clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND publish_time = (SELECT MAX(publish_time) WHERE TRUE)
--- a part of a text
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND EXTRACT(WEEK FROM topic) = 0
--- an order by a literal
--: codes order_ordinal
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' ORDER BY 'm'
--- the biggest array
--: codes type_mismatch
SELECT ANY_VALUE(data) AS data, MAX(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY message_id
--- a column left out twice
--: codes name_duplicate name_duplicate
SELECT * EXCEPT (topic, topic) FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone that is none
--: codes literal_invalid
SELECT *, DATE(publish_time, 'Mars/Base') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone that is none in extract
--: codes literal_invalid
SELECT *, EXTRACT(HOUR FROM publish_time AT TIME ZONE '2024') AS h FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone that is a row
--: codes type_mismatch
SELECT *, EXTRACT(HOUR FROM publish_time AT TIME ZONE m) AS h FROM backup.messages AS m WHERE _PARTITIONDATE = '2024-01-01'
--- a time zone for a date
--: codes type_mismatch
SELECT *, EXTRACT(DAY FROM DATE(publish_time) AT TIME ZONE 'UTC') AS d FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a comparison with a bare null
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic = NULL
--- a bare null on the left
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND NULL <> topic
--- a bare null in brackets
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND (NULL) = topic
--- like a bare null
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic NOT LIKE NULL
--- not a bare null
--: codes literal_invalid
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND NOT NULL
--- a sum with a bare null
--: codes literal_invalid
SELECT *, 1 + NULL AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a text and a bare null
--: codes literal_invalid
SELECT *, topic || NULL AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a null that a query makes a number
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic = (SELECT NULL)
--- a null that a subquery makes a number
--: codes type_mismatch
SELECT * FROM (SELECT *, NULL AS x FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') WHERE x = 'a'
--- a text in numbers that were null
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic IN (SELECT NULL)
--- a null in numbers and texts
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND NULL IN (SELECT 'a')
--- a struct with a null beside one with a text
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND (topic, NULL) = (topic, 'a')
--- structs in an order
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND STRUCT(1) < STRUCT(2)
--- the complement of a fraction
--: codes type_mismatch
SELECT *, ~ 1.5 AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
