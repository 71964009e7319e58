-- PostgreSQL: bring the tables of a checkout of 0.3.0 to the present release, and keep their keys.
-- upgrading.md says what to do before. Run it with `psql --set ON_ERROR_STOP=1 --file`. It is one transaction.
BEGIN;
LOCK TABLE django_idempotency_idempotencykey, django_idempotency_idempotencystep IN ACCESS EXCLUSIVE MODE;
ALTER TABLE django_idempotency_idempotencykey
    ALTER COLUMN policy TYPE varchar(11),
    ADD COLUMN unknown integer DEFAULT 0 NOT NULL CHECK (unknown >= 0),
    ADD COLUMN effects integer DEFAULT 0 NOT NULL CHECK (effects >= 0),
    ADD COLUMN attention_at timestamp with time zone NULL;
ALTER TABLE django_idempotency_idempotencystep
    ADD COLUMN key_hash bigint NULL,
    ADD COLUMN scope_hash bigint NULL,
    DROP CONSTRAINT idempotency_step_uniq;
DROP INDEX idempotency_doubt_idx;
-- A step has the hashes of its key.
UPDATE django_idempotency_idempotencystep AS step SET key_hash = key.key_hash, scope_hash = key.scope_hash
    FROM django_idempotency_idempotencykey AS key WHERE key.id = step.key_id;
-- A key counts its steps: those without a result, and the calls that have finished.
UPDATE django_idempotency_idempotencykey AS key SET unknown = counted.unknown, effects = counted.effects
    FROM (
        SELECT key_id, count(*) FILTER (WHERE finished_at IS NULL) AS unknown,
            count(*) FILTER (WHERE finished_at IS NOT NULL AND kind = 'call') AS effects
        FROM django_idempotency_idempotencystep GROUP BY key_id
    ) AS counted
    WHERE key.id = counted.key_id;
UPDATE django_idempotency_idempotencykey SET attention_at = updated_at
    WHERE status = 'failed' AND unknown + effects > 0;
ALTER TABLE django_idempotency_idempotencystep
    ALTER COLUMN key_hash SET NOT NULL,
    ALTER COLUMN scope_hash SET NOT NULL,
    ADD CONSTRAINT idempotency_step_uniq UNIQUE (key_id, key_hash, scope_hash, name);
ALTER TABLE django_idempotency_idempotencykey ADD CONSTRAINT idempotency_attention_fits CHECK (
    (attention_at IS NOT NULL) = (unknown + effects > 0 AND status = 'failed')
);
DROP INDEX idempotency_failed_idx;
CREATE INDEX idempotency_failed_idx ON django_idempotency_idempotencykey (attention_at, created_at)
    WHERE last_error IS NOT NULL;
COMMIT;
