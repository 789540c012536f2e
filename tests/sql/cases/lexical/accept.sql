--- comments of every kind
--: rows m1 m2
# the whole day
SELECT /* everything */ * -- of it
FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' /* ; DROP TABLE x */
--- words inside strings
--: rows
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic = 'DROP TABLE x; -- /* @@ `'
--- strings in every quoting
--: rows m1 m2
SELECT data, attributes, message_id, 'a' AS a, "b" AS b, '''c'c''' AS c, """d"d""" AS d, r'\d' AS e, b'\xff' AS f, rb"\x" AS g, '\u00e5\x41\101\n' AS h FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a non-ASCII name for an extra column
--: rows m1 m2
SELECT *, LENGTH(data) AS `größe` FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- non-ASCII text
--: rows
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' AND topic = 'åäö 😀'
--- windows line ends
--: rows m1 m2
SELECT *
FROM backup.messages
WHERE _PARTITIONDATE = '2024-01-01'
--- numbers of every kind
--: rows m1 m2
SELECT *, 1 AS a, -2 AS b, 0xFF AS c, 1.5 AS d, .5 AS e, 1e3 AS f, 2. AS g FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
