--- no filter
--: codes window_missing
SELECT * FROM backup.messages
--- another column
--: codes window_missing
SELECT * FROM backup.messages WHERE publish_time >= '2024-01-01'
--- the stored ingest_time
--: codes window_missing
SELECT * FROM backup.messages WHERE ingest_time >= '2024-01-01'
--- an upper end only
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME < '2024-01-05'
--- or true
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' OR TRUE
--- or a condition that does not bound
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' OR topic = 'orders'
--- or one is one
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME = '2024-01-01' OR 1 = 1
--- not
--: codes window_missing
SELECT * FROM backup.messages WHERE NOT (_PARTITIONTIME < '2024-01-01')
--- not between
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME NOT BETWEEN '2024-01-01' AND '2024-01-02'
--- not in
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE NOT IN ('2024-01-01')
--- unequal
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE != '2024-01-01'
--- case
--: codes window_missing
SELECT * FROM backup.messages WHERE CASE WHEN topic = 'x' THEN _PARTITIONTIME >= '2024-01-01' ELSE TRUE END
--- if
--: codes window_missing
SELECT * FROM backup.messages WHERE IF(topic = 'x', _PARTITIONTIME >= '2024-01-01', TRUE)
--- coalesce
--: codes window_missing
SELECT * FROM backup.messages WHERE COALESCE(_PARTITIONTIME >= '2024-01-01', TRUE)
--- is true
--: codes window_missing
SELECT * FROM backup.messages WHERE (_PARTITIONTIME >= '2024-01-01') IS NOT NULL
--- a cast of the pseudo column
--: codes window_missing
SELECT * FROM backup.messages WHERE CAST(_PARTITIONTIME AS DATE) >= '2024-01-01'
--- a string of the pseudo column
--: codes window_missing
SELECT * FROM backup.messages WHERE FORMAT_TIMESTAMP('%F', _PARTITIONTIME) >= '2024-01-01'
--- an extract of the pseudo column
--: codes window_missing
SELECT * FROM backup.messages WHERE EXTRACT(DATE FROM _PARTITIONTIME) >= '2024-01-01'
--- the pseudo column moved
--: codes window_missing
SELECT * FROM backup.messages WHERE TIMESTAMP_ADD(_PARTITIONTIME, INTERVAL 1 DAY) >= '2024-01-01'
--- an alias named like the pseudo column
--: codes window_missing
SELECT * EXCEPT (_PARTITIONTIME) FROM (SELECT *, publish_time AS _PARTITIONTIME FROM backup.messages) WHERE _PARTITIONTIME >= '2024-01-01'
--- a cte with a column named like the pseudo column
--: codes window_missing
WITH m AS (SELECT data, attributes, message_id, CURRENT_TIMESTAMP() AS _PARTITIONTIME FROM backup.messages) SELECT data, attributes, message_id FROM m WHERE _PARTITIONTIME >= '2024-01-01'
--- an unnest alias named like the pseudo column
--: codes window_missing
SELECT data, attributes, message_id FROM backup.messages m, UNNEST([TIMESTAMP '2024-01-05']) AS _PARTITIONTIME WHERE _PARTITIONTIME >= '2024-01-01'
--- a bound in one branch of a union
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL SELECT * FROM backup.messages
--- a bound only outside of a limit
--: codes window_missing
SELECT data, attributes, message_id FROM (SELECT *, _PARTITIONTIME AS t FROM backup.messages LIMIT 10) WHERE t >= '2024-01-01'
--- a bound in having
--: codes window_missing
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages GROUP BY message_id, _PARTITIONTIME HAVING _PARTITIONTIME >= '2024-01-01'
--- a bound in qualify
--: codes window_missing
SELECT * FROM backup.messages WHERE TRUE QUALIFY _PARTITIONTIME >= '2024-01-01' AND ROW_NUMBER() OVER (ORDER BY publish_time) = 1
--- a bound by another column
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= publish_time
--- a bound by itself
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= _PARTITIONTIME
--- a bound by a subquery
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= (SELECT TIMESTAMP '2024-01-01')
--- a bound by chance
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL CAST(RAND() * 1000 AS INT64) DAY)
--- a bound by null
--: codes literal_invalid window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= NULL
--- a bound by a parameter that is null
--: codes window_missing
--: params {"from": {"type": "TIMESTAMP", "value": null}}
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= @from
--- the other side of a self join is open
--: codes window_missing
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = b.message_id WHERE a._PARTITIONDATE = '2024-01-01'
--- both sides only bound to each other
--: codes window_missing window_missing
SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = b.message_id AND a._PARTITIONTIME = b._PARTITIONTIME
--- the optional side does not bound the other
--: codes window_missing
SELECT a.* FROM backup.messages a LEFT JOIN backup.messages b ON a.message_id = b.message_id AND a._PARTITIONDATE = '2024-01-01' AND b._PARTITIONDATE = '2024-01-01'
--- exists reads without a bound
--: codes window_missing
SELECT * FROM backup.messages m WHERE _PARTITIONDATE = '2024-01-01' AND EXISTS (SELECT 1 FROM backup.messages o WHERE o.message_id = m.message_id)
--- the outer bound inside a subquery does not count
--: codes window_missing
SELECT * FROM backup.messages m WHERE EXISTS (SELECT 1 FROM UNNEST([1]) WHERE m._PARTITIONDATE = '2024-01-01')
--- in reads without a bound
--: codes window_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND message_id IN (SELECT message_id FROM backup.messages)
--- an unused cte reads without a bound
--: codes window_missing
WITH unused AS (SELECT * FROM backup.messages) SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a scalar subquery reads without a bound
--: codes window_missing
SELECT *, (SELECT COUNT(*) FROM backup.messages) AS n FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- bounds that contradict each other
--: codes window_empty
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-05' AND _PARTITIONTIME < '2024-01-01'
--- too wide
--: codes window_too_wide
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2020-01-01'
--- too wide together
--: codes window_too_wide
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2022-01-01' UNION ALL SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a date against a timestamp
--: codes type_mismatch
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= DATE '2024-01-01'
--- a date that is none
--: codes literal_invalid window_missing
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= '2024-02-31'
--- a like
--: codes literal_invalid window_missing
SELECT * FROM backup.messages WHERE _PARTITIONTIME LIKE '2024-01-01%'
--- a cte read twice, bounded once
--: codes window_missing
WITH m AS (SELECT *, _PARTITIONDATE AS day FROM backup.messages) SELECT * EXCEPT (day) FROM m WHERE day = '2024-01-01' UNION ALL SELECT * EXCEPT (day) FROM m
--- a cte joined with itself, bounded on one side
--: codes window_missing
WITH m AS (SELECT *, _PARTITIONDATE AS day FROM backup.messages) SELECT a.* EXCEPT (day) FROM m AS a JOIN m AS b ON a.message_id = b.message_id WHERE a.day = '2024-01-01'
--- a filter around a window function
--: codes window_missing
SELECT * EXCEPT (day, n) FROM (SELECT *, _PARTITIONDATE AS day, ROW_NUMBER() OVER (ORDER BY publish_time) AS n FROM backup.messages) WHERE day = '2024-01-01'
--- a filter around an aggregate
--: codes window_missing
SELECT data, attributes, message_id FROM (SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id, _PARTITIONDATE AS day FROM backup.messages GROUP BY message_id, _PARTITIONDATE) WHERE day = '2024-01-01'
--- a filter around a union
--: codes window_missing window_missing
SELECT * EXCEPT (day) FROM (SELECT *, _PARTITIONDATE AS day FROM backup.messages UNION ALL SELECT *, _PARTITIONDATE AS day FROM backup.messages) WHERE day = '2024-01-01'
--- the date of the pseudo column elsewhere
--: codes window_missing
SELECT * FROM backup.messages WHERE DATE(_PARTITIONTIME, 'Asia/Tokyo') = '2024-01-01'
--- a window of one side of a join of the archive with itself
--: codes window_missing
SELECT a.data, a.attributes, a.message_id FROM backup.messages a JOIN backup.messages b USING (message_id) WHERE a._PARTITIONTIME >= TIMESTAMP '2024-01-01' AND a._PARTITIONTIME < TIMESTAMP '2024-01-03'
