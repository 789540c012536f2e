--- between timestamps
--: rows m1 m2 m3 m4 m5
--: window 2024-01-01T00:00:00+00:00 2024-01-02T00:00:00.000001+00:00
SELECT * FROM backup.messages WHERE _PARTITIONTIME BETWEEN TIMESTAMP '2024-01-01' AND TIMESTAMP '2024-01-02'
--- half open
--: rows m3 m4 m5
--: window 2024-01-02T00:00:00+00:00 2024-01-03T00:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-02' AND _PARTITIONTIME < '2024-01-03'
--- lower end only
--: rows m8
--: window 2024-01-03T00:00:00.000001+00:00 2024-01-10T12:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONTIME > '2024-01-03'
--- lower end only, strictly
--: rows m8
--: window 2024-01-05T00:00:00+00:00 2024-01-10T12:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONDATE > DATE '2024-01-04'
--- one day
--: rows m1 m2
--: window 2024-01-01T00:00:00+00:00 2024-01-02T00:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONDATE = DATE '2024-01-01'
--- the constant on the left
--: rows m6 m7 m8
SELECT * FROM backup.messages WHERE '2024-01-03' <= _PARTITIONDATE AND DATE '2024-01-09' > _PARTITIONDATE
--- a list of days
--: rows m1 m2 m8
--: window 2024-01-01T00:00:00+00:00 2024-01-06T00:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONDATE IN ('2024-01-01', '2024-01-05')
--- a generated list of days
--: rows m1 m2 m3 m4 m5
SELECT * FROM backup.messages WHERE _PARTITIONDATE IN UNNEST(GENERATE_DATE_ARRAY('2024-01-01', '2024-01-02'))
--- an or of bounded windows
--: rows m1 m2 m8
--: window 2024-01-01T00:00:00+00:00 2024-01-06T00:00:00+00:00
SELECT * FROM backup.messages WHERE (_PARTITIONTIME >= '2024-01-01' AND _PARTITIONTIME < '2024-01-02') OR _PARTITIONDATE = '2024-01-05'
--- the date of the pseudo column
--: rows m1 m2
--: window 2024-01-01T00:00:00+00:00 2024-01-02T00:00:00+00:00
SELECT * FROM backup.messages WHERE DATE(_PARTITIONTIME) = '2024-01-01'
--- the pseudo column cut to a day
--: rows m1 m2
--: window 2024-01-01T00:00:00+00:00 2024-01-02T00:00:00+00:00
SELECT * FROM backup.messages WHERE TIMESTAMP_TRUNC(_PARTITIONTIME, DAY) = TIMESTAMP('2024-01-01')
--- the pseudo column cut to a month
--: rows m1 m2 m3 m4 m5 m6 m7 m8
--: window 2024-01-01T00:00:00+00:00 2024-02-01T00:00:00+00:00
SELECT * FROM backup.messages WHERE DATE_TRUNC(_PARTITIONDATE, MONTH) = '2024-01-01'
--- constant expressions of today
--: rows m8
--: window 2024-01-05T00:00:00+00:00 2024-01-10T12:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= DATE_SUB(CURRENT_DATE(), INTERVAL 5 DAY)
--- today without brackets and arithmetic
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= CURRENT_DATE - 5
--- timestamps from now
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= TIMESTAMP_SUB(TIMESTAMP_TRUNC(CURRENT_TIMESTAMP(), DAY), INTERVAL 6 DAY)
--- interval arithmetic on now
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME > CURRENT_TIMESTAMP() - INTERVAL 6 DAY
--- today in a time zone
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= TIMESTAMP(DATE_ADD(CURRENT_DATE('Europe/Stockholm'), INTERVAL -6 DAY), 'Europe/Stockholm')
--- parameters
--: rows m1 m2
--: params {"from": {"type": "TIMESTAMP", "value": "2024-01-01T00:00:00Z"}, "to": {"type": "TIMESTAMP", "value": "2024-01-02T00:00:00Z"}}
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to
--- a list of days as a parameter
--: rows m1 m2 m8
--: params {"days": {"type": "ARRAY<DATE>", "value": ["2024-01-01", "2024-01-05"]}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE IN UNNEST(@days)
--- days back as a parameter
--: rows m8
--: params {"days": {"type": "INT64", "value": 5}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= DATE_SUB(CURRENT_DATE(), INTERVAL @days DAY)
--- a string as a date parameter
--: rows m1 m2
--: params {"day": {"type": "STRING", "value": "2024-01-01"}}
SELECT * FROM backup.messages WHERE _PARTITIONDATE = @day
--- a cast of a constant
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = CAST('2024-01-01' AS DATE)
--- parsed from parts
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = DATE(2024, 1, 1)
--- a filter of its own beside the window
--: rows m5
SELECT * FROM backup.messages WHERE (_PARTITIONDATE >= '2024-01-01' AND topic = 'members') AND NOT message_id = 'm6'
--- hours within a day
--: rows
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01 10:00:00' AND _PARTITIONTIME < '2024-01-01 12:00:00+00'
--- an or inside an and
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-01' AND (_PARTITIONDATE < '2024-01-02' OR FALSE)
--- a window in the future
--: rows
--: window 2024-02-01T00:00:00+00:00 2024-02-01T00:00:00+00:00
SELECT * FROM backup.messages WHERE _PARTITIONDATE >= '2024-02-01'
--- the pseudo column under another name, filtered around
--: rows m1 m2
SELECT data, attributes, message_id FROM (SELECT *, _PARTITIONTIME AS t FROM backup.messages) WHERE t < '2024-01-02' AND t >= '2024-01-01'
--- a cte that hands the pseudo column on
--: rows m8
WITH m AS (SELECT *, _PARTITIONDATE AS day FROM backup.messages WHERE topic = 'orders') SELECT * EXCEPT (day) FROM m WHERE day > '2024-01-04'
--- a cte read twice, bounded each time
--: rows m1 m2 m8
--: window 2024-01-01T00:00:00+00:00 2024-01-06T00:00:00+00:00
WITH m AS (SELECT *, _PARTITIONDATE AS day FROM backup.messages) SELECT * EXCEPT (day) FROM m WHERE day = '2024-01-01' UNION ALL SELECT * EXCEPT (day) FROM m WHERE day = '2024-01-05'
--- parsed from text
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = PARSE_DATE('%Y%m%d', '20240101')
--- the later of two
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= GREATEST(TIMESTAMP '2024-01-05', TIMESTAMP '2024-01-02')
--- a timestamp in a zone
--: rows m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= TIMESTAMP('2024-01-05 01:00:00', 'Europe/Stockholm')
--- the date of the pseudo column in UTC
--: rows m1 m2
SELECT * FROM backup.messages WHERE DATE(_PARTITIONTIME, 'UTC') = '2024-01-01' AND TIMESTAMP_TRUNC(_PARTITIONTIME, DAY, 'UTC') = '2024-01-01'
