--- an open comment
--: codes comment_open
SELECT * FROM backup.messages /* WHERE
--- an open string
--: codes string_open
SELECT * FROM backup.messages WHERE topic = 'orders
--- an open name
--: codes identifier_open
SELECT * FROM `backup.messages
--- an empty name
--: codes identifier_invalid
SELECT `` FROM backup.messages
--- a fullwidth sign
--: codes character_not_allowed
SELECT ＊ FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a non-breaking blank
--: codes character_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a zero width blank
--: codes character_not_allowed
SELECT * FROM backup.mes​sages WHERE _PARTITIONDATE = '2024-01-01'
--- typographic quotes
--: codes character_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = ‘2024-01-01’
--- letters that look like others
--: codes character_not_allowed
SELECT * FROM bаckup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- an escape that is none
--: codes string_escape
SELECT * FROM backup.messages WHERE topic = '\q'
--- half a surrogate by an escape
--: codes string_escape
SELECT * FROM backup.messages WHERE topic = '\uD800'
--- a number that runs into a name
--: codes number_invalid
SELECT 1a FROM backup.messages
--- a system variable
--: codes system_variable
SELECT @@project_id AS p, * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- a hint
--: codes parameter_invalid
SELECT * FROM backup.messages@{FORCE_INDEX=x} WHERE _PARTITIONDATE = '2024-01-01'
--- a positional parameter
--: codes parameter_positional
SELECT * FROM backup.messages WHERE _PARTITIONDATE = ?
--- braces
--: codes character_not_allowed
SELECT {x: 1} FROM backup.messages
--- legacy SQL
--: codes legacy_sql
#legacySQL
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- legacy table names
--: codes syntax
SELECT * FROM [shop:backup.messages]
--- a dollar
--: codes character_not_allowed
SELECT * FROM backup.messages$20240101
--- nesting without end
--: codes query_too_deep
SELECT ((((((((((((((((((((((((((((((((1)))))))))))))))))))))))))))))))) FROM backup.messages
--- nothing but a comment
--: codes query_empty
-- nothing
--- a lone bracket
--: codes syntax
SELECT * FROM backup.messages WHERE (_PARTITIONDATE = '2024-01-01'
--- a bracket too many
--: codes syntax
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01')
--- a text that reads like a bracket
--: codes syntax
SELECT * EXCEPT '(' topic) FROM backup.messages
--- a text that reads like an arrow
--: codes syntax
SELECT f(a '=>' b)
--- a text that reads like a call
--: codes syntax
SELECT CURRENT_DATE '('
