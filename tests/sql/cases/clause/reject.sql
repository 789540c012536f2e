--- select into
--: codes clause_not_allowed
SELECT * INTO ops.copy FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- for update
--: codes clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' FOR UPDATE
--- time travel
--: codes clause_not_allowed
SELECT * FROM backup.messages FOR SYSTEM_TIME AS OF TIMESTAMP '2024-01-01' WHERE _PARTITIONDATE = '2024-01-01'
--- pivot
--: codes clause_not_allowed
SELECT * FROM backup.messages PIVOT (COUNT(*) FOR topic IN ('orders')) WHERE TRUE
--- unpivot
--: codes clause_not_allowed
SELECT * FROM backup.messages UNPIVOT (x FOR y IN (topic, subscription))
--- differential privacy
--: codes clause_not_allowed
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1) COUNT(*) FROM backup.messages
--- rollup
--: codes clause_not_allowed
SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' GROUP BY ROLLUP (message_id)
--- fetch
--: codes clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' FETCH FIRST 1 ROWS ONLY
--- lateral
--: codes clause_not_allowed
SELECT * FROM backup.messages, LATERAL (SELECT 1) WHERE _PARTITIONDATE = '2024-01-01'
--- a sample of another kind
--: codes clause_not_allowed
SELECT * FROM backup.messages TABLESAMPLE BERNOULLI (1 PERCENT) WHERE _PARTITIONDATE = '2024-01-01'
--- match recognize
--: codes clause_not_allowed
SELECT * FROM backup.messages MATCH_RECOGNIZE (ORDER BY publish_time)
--- a limit by a column
--: codes limit_not_constant
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' LIMIT LENGTH(topic)
--- a limit below zero
--: codes limit_not_constant
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' LIMIT -1
--- a protocol buffer
--: codes clause_not_allowed
SELECT NEW x.y(1 AS z) FROM backup.messages
--- columns matched by name
--: codes clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' UNION ALL BY NAME SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
--- qualify alone
--: codes clause_not_allowed
SELECT * FROM (SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01') QUALIFY ROW_NUMBER() OVER (PARTITION BY message_id ORDER BY publish_time) = 1
--- qualify without a window
--: codes clause_not_allowed
SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01' QUALIFY TRUE
