--- a table behind ORDER BY
--: codes table_not_allowed
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' ORDER BY (SELECT x FROM ops.secrets LIMIT 1)

--- a table behind LIMIT
--: codes limit_not_constant table_not_allowed
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' LIMIT (SELECT 1 FROM ops.secrets)

--- a table inside an attribute
--: codes column_type table_not_allowed
SELECT data, ARRAY(SELECT AS STRUCT k AS key, v AS value FROM ops.secrets) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'

--- a table in a CTE that nothing reads
--: codes table_not_allowed
WITH u AS (SELECT * FROM ops.secrets) SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'

--- a CTE named like the archive
--: codes table_not_allowed
WITH `backup.messages` AS (SELECT * FROM ops.secrets) SELECT data, attributes, message_id FROM `backup.messages` WHERE _PARTITIONDATE = '2024-01-02'

--- another project with the archive's path at its end
--: codes table_not_allowed
SELECT data, attributes, message_id FROM `evil.shop.backup.messages` WHERE _PARTITIONDATE = '2024-01-02'

--- the lake's own view
--: codes table_not_allowed
SELECT data, attributes, message_id FROM refeed_archive WHERE _PARTITIONDATE = '2024-01-02'

--- a file of the machine
--: codes syntax
SELECT data, attributes, message_id FROM '/etc/passwd' WHERE _PARTITIONDATE = '2024-01-02'

--- a bound on a column that another table lends
--: codes window_missing
SELECT m.data, m.attributes, m.message_id FROM backup.messages m, (SELECT DATE '2024-01-02' AS day) x WHERE x.day = '2024-01-02'

--- a bound that the other side of a FULL JOIN has
--: codes window_missing window_missing
SELECT a.* FROM backup.messages a FULL JOIN backup.messages b ON a.message_id = b.message_id AND a._PARTITIONDATE = '2024-01-02' AND b._PARTITIONDATE = '2024-01-02'

--- a bound behind a window function
--: codes window_missing
SELECT * EXCEPT (rn, pt) FROM (SELECT *, ROW_NUMBER() OVER () AS rn, _PARTITIONTIME AS pt FROM backup.messages) WHERE pt = '2024-01-02'

--- a bound that only one of two readings of a CTE has
--: codes window_missing
WITH m AS (SELECT *, _PARTITIONDATE AS d FROM backup.messages) SELECT data, attributes, message_id FROM m WHERE d = '2024-01-02' UNION ALL SELECT data, attributes, message_id FROM m

--- everything, by two halves
--: codes window_missing
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-01' OR _PARTITIONDATE < '2024-01-01'

--- a pipe that fits behind nothing
--: codes pipe_not_allowed
SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02' |> TEE (|> SELECT 1)

--- an emoji where a blank could be
--: codes character_not_allowed
SELECT data, attributes, message_id😀 FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'
