-- What Refeed made before it had migrations, word for word.
CREATE TABLE jobs (
    id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL, created_by TEXT NOT NULL,
    created_at TEXT NOT NULL, started_at TEXT, finished_at TEXT, progress TEXT NOT NULL, error TEXT,
    epoch INTEGER NOT NULL, driver TEXT, idempotency_key TEXT, fingerprint TEXT, version INTEGER NOT NULL,
    PRIMARY KEY (id), UNIQUE (idempotency_key)
);
CREATE INDEX jobs_by_state ON jobs (kind, state);
CREATE TABLE events (
    number INTEGER NOT NULL, job_id TEXT NOT NULL, at TEXT NOT NULL, actor TEXT NOT NULL, what TEXT NOT NULL,
    why TEXT,
    PRIMARY KEY (number), FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_events_job_id ON events (job_id);
INSERT INTO jobs VALUES (
    'bf_1', 'backfill', 'FAILED', '{"query": "SELECT 1", "topic": "orders", "labels": {"env": "prod"}}', 'ann',
    '2026-01-02T03:04:05.000006+00:00', '2026-01-02T03:04:06+00:00', '2026-01-02T03:05:00.5+00:00',
    '{"selected": 5, "published": 3}', '{"code": "driver_died", "message": "Died."}', 2,
    '{"pid": 1, "start_ticks": 2, "boot_id": "b"}', 'key', 'digest', 7
);
INSERT INTO jobs VALUES (
    'bf_2', 'backfill', 'PENDING', '{"query": "SELECT 2", "topic": "pays", "labels": {}}', 'bob',
    '2026-01-02T03:04:05+00:00', NULL, NULL, '{}', NULL, 0, NULL, NULL, NULL, 1
);
INSERT INTO events VALUES (1, 'bf_1', '2026-01-02T03:04:05.000006+00:00', 'ann', 'created', NULL);
INSERT INTO events VALUES (2, 'bf_1', '2026-01-02T03:05:00+00:00', 'refeed', 'RUNNING -> FAILED', 'Died.');
