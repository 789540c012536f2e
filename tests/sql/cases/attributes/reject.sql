--- an attribute without a type
--: codes type_mismatch
SELECT data, ARRAY_CONCAT(attributes, [STRUCT('k' AS key, NULL AS value)]) AS attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'
