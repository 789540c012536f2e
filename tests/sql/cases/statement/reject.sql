--- insert
--: codes statement_not_allowed
INSERT INTO backup.messages (message_id) VALUES ('x')
--- update
--: codes statement_not_allowed
UPDATE backup.messages SET message_id = 'x' WHERE TRUE
--- delete
--: codes statement_not_allowed
DELETE FROM backup.messages WHERE TRUE
--- merge
--: codes statement_not_allowed
MERGE backup.messages USING backup.messages ON TRUE WHEN MATCHED THEN DELETE
--- truncate
--: codes statement_not_allowed
TRUNCATE TABLE backup.messages
--- create
--: codes statement_not_allowed
CREATE TABLE ops.copy AS SELECT * FROM backup.messages
--- a temporary function
--: codes statement_not_allowed
CREATE TEMP FUNCTION f(x STRING) RETURNS STRING LANGUAGE js AS 'return x'; SELECT f(topic) FROM backup.messages
--- drop
--: codes statement_not_allowed
drop table backup.messages
--- alter
--: codes statement_not_allowed
ALTER TABLE backup.messages SET OPTIONS (description = 'x')
--- grant
--: codes statement_not_allowed
GRANT `roles/bigquery.dataViewer` ON TABLE backup.messages TO 'user:x@example.com'
--- revoke
--: codes statement_not_allowed
REVOKE `roles/bigquery.dataViewer` ON TABLE backup.messages FROM 'user:x@example.com'
--- export
--: codes statement_not_allowed
EXPORT DATA OPTIONS (uri = 'gs://x/*', format = 'CSV') AS SELECT * FROM backup.messages
--- load
--: codes statement_not_allowed
LOAD DATA INTO backup.messages FROM FILES (uris = ['gs://x'])
--- call
--: codes statement_not_allowed
CALL ops.procedure()
--- execute immediate
--: codes statement_not_allowed
EXECUTE IMMEDIATE 'SELECT 1'
--- declare
--: codes statement_not_allowed
DECLARE x INT64; SELECT * FROM backup.messages
--- set
--: codes statement_not_allowed
SET x = 1
--- begin
--: codes statement_not_allowed
BEGIN SELECT 1; END
--- a transaction
--: codes statement_not_allowed
BEGIN TRANSACTION
--- commit
--: codes statement_not_allowed
COMMIT TRANSACTION
--- if
--: codes statement_not_allowed
IF TRUE THEN SELECT 1; END IF
--- assert
--: codes statement_not_allowed
ASSERT (SELECT COUNT(*) FROM backup.messages) > 0
--- explain
--: codes statement_not_allowed
EXPLAIN SELECT * FROM backup.messages
--- raise
--: codes statement_not_allowed
RAISE USING MESSAGE = 'x'
--- two queries
--: codes several_statements
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'; SELECT 1
--- two semicolons
--: codes several_statements
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01';;
--- a statement behind a comment
--: codes several_statements
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'; -- and
DROP TABLE backup.messages
--- a bare table
--: codes syntax
TABLE backup.messages
--- values
--: codes syntax
VALUES (1, 2)
--- no statement
--: codes syntax
hello world
