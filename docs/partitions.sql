-- Replace the migrated key table by one with 16 hash partitions. Keyed requests wait until COMMIT.
-- Grants and storage parameters are not copied: give them again afterwards.
-- performance.md#size says what to know before. tests/databases/stores/test_partitions.py runs this file.
BEGIN;
LOCK TABLE django_idempotency_idempotencykey;
CREATE TABLE idempotency_partitioned (
    LIKE django_idempotency_idempotencykey INCLUDING IDENTITY INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE
) PARTITION BY HASH (key_hash);
DO $$ BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE idempotency_part_%s PARTITION OF idempotency_partitioned '
            'FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 95)', n, n
        );
    END LOOP;
END $$;
INSERT INTO idempotency_partitioned OVERRIDING SYSTEM VALUE SELECT * FROM django_idempotency_idempotencykey;
SELECT setval(
    pg_get_serial_sequence('idempotency_partitioned', 'id'),
    nextval(pg_get_serial_sequence('django_idempotency_idempotencykey', 'id'))
);
DROP TABLE django_idempotency_idempotencykey;
ALTER TABLE idempotency_partitioned RENAME TO django_idempotency_idempotencykey;
ALTER SEQUENCE idempotency_partitioned_id_seq RENAME TO django_idempotency_idempotencykey_id_seq;
ALTER TABLE django_idempotency_idempotencykey ADD CONSTRAINT idempotency_key_uniq PRIMARY KEY (key_hash, scope_hash);
CREATE INDEX idempotency_id_idx ON django_idempotency_idempotencykey (id);
CREATE INDEX idempotency_expires_idx ON django_idempotency_idempotencykey (expires_at);
CREATE INDEX idempotency_scope_idx ON django_idempotency_idempotencykey (scope);
CREATE INDEX idempotency_locked_idx ON django_idempotency_idempotencykey (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX idempotency_failed_idx ON django_idempotency_idempotencykey (attention_at, created_at)
    WHERE last_error IS NOT NULL;
CREATE INDEX idempotency_resource_idx ON django_idempotency_idempotencykey (resource_id, resource_type)
    WHERE resource_id IS NOT NULL;
COMMIT;
