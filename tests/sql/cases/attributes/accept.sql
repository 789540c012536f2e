--- one attribute as a value
--: rows m1 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND (SELECT value FROM UNNEST(attributes) WHERE key = 'type') = 'order' AND (SELECT value FROM UNNEST(attributes) WHERE key = 'region') = 'eu'
--- exists with an alias
--: rows m1 m7 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND EXISTS (SELECT 1 FROM UNNEST(attributes) a WHERE a.key = 'region' AND a.value = 'eu')
--- exists without an alias
--: rows m1 m7 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND EXISTS (SELECT * FROM UNNEST(attributes) WHERE key = 'region' AND value = 'eu')
--- not exists
--: rows m4 m6
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND NOT EXISTS (SELECT 1 FROM UNNEST(attributes) WHERE key = 'type')
--- in a subquery over the array
--: rows m1 m2 m7 m8
SELECT * FROM backup.messages AS m WHERE _PARTITIONTIME >= '2024-01-01' AND 'region' IN (SELECT key FROM UNNEST(m.attributes))
--- a comma join
--: rows m1 m7 m8
SELECT data, attributes, message_id FROM backup.messages, UNNEST(attributes) AS a WHERE _PARTITIONTIME >= '2024-01-01' AND a.key = 'region' AND a.value = 'eu'
--- a cross join with an offset
--: rows m1 m2 m7 m8
SELECT data, attributes, message_id, pos FROM backup.messages CROSS JOIN UNNEST(attributes) AS a WITH OFFSET AS pos WHERE _PARTITIONTIME >= '2024-01-01' AND a.key = 'region' AND pos = 1
--- an implicit correlated array
--: rows m1 m7 m8
SELECT m.data, m.attributes, m.message_id FROM backup.messages AS m, m.attributes AS a WHERE m._PARTITIONTIME >= '2024-01-01' AND a.value = 'eu'
--- a left join with the array
--: rows m6
SELECT m.* FROM backup.messages m LEFT JOIN UNNEST(m.attributes) a WHERE _PARTITIONTIME >= '2024-01-01' AND a.key IS NULL
--- the number of attributes
--: rows m3 m4 m5
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND ARRAY_LENGTH(attributes) = 1
--- the first attribute
--: rows m1 m2 m3 m5 m7 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND attributes[SAFE_OFFSET(0)].key = 'type'
--- by ordinal
--: rows m1 m2
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND attributes[ORDINAL(1)].value = 'order'
--- joined to one text
--: rows m1 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND ARRAY_TO_STRING(ARRAY(SELECT key || '=' || value FROM UNNEST(attributes) ORDER BY key), '&') = 'region=eu&type=order'
--- counted in a subquery
--: rows m1 m2 m7 m8
SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND (SELECT COUNT(*) FROM UNNEST(attributes) a WHERE a.key IN ('type', 'region')) = 2
--- an attribute as a column
--: rows m1 m2
SELECT data, attributes, message_id, (SELECT a.value FROM UNNEST(attributes) AS a WHERE a.key = 'region' LIMIT 1) AS region FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
