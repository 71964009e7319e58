"""PostgreSQL: what each keyed request runs, as functions. A connection keeps the statements of a function planned.

Names end in a version, because old and new code run side by side during a deployment. Never change a version: add the
next one in a new migration, and drop the old one in a later release. A test holds the texts by their hashes.

Names of tables are not qualified. As everywhere in Django, the `search_path` decides: each tenant's schema has tables
and functions of its own. `SECURITY INVOKER`: a function may do no more than the role that calls it.
`use_variable`: a column that a later migration adds may have the name of a parameter.
`enable_seqscan = off`: a plan that was made while the table was small would read the whole table when it is large.
"""

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# Always returns one row. It names the columns of a new row that stay NULL, so that an older table is noticed before the
# view runs. VOLATILE: each statement sees what was committed before that statement. So a claim that meets
# a row of this very moment reads that row in the second round. "other": the caller has to look closer.
CLAIM = """
CREATE FUNCTION {schema}.idempotency_claim_1(
    new_key_hash bigint, new_scope_hash bigint, new_scope text, new_operation text, new_key text,
    new_fingerprint bytea, ttl double precision,
    OUT outcome text, OUT row_id bigint, OUT stored_code integer, OUT stored_headers text, OUT stored_body bytea,
    OUT about_type text, OUT about_id text
) LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    is_final boolean;
    same_payload boolean;
BEGIN
    FOR round IN 1..2 LOOP
        SELECT k.id, k.status_code, k.headers, k.body, k.resource_type, k.resource_id,
            k.scope = new_scope AND k.operation = new_operation AND k.key::text = new_key
                AND k.status::text = 'completed' AND k.status_code IS NOT NULL
                AND k.expires_at > pg_catalog.clock_timestamp(),
            (k.fingerprint = new_fingerprint) IS NOT FALSE
        INTO row_id, stored_code, stored_headers, stored_body, about_type, about_id, is_final, same_payload
        FROM django_idempotency_idempotencykey k
        WHERE k.key_hash = new_key_hash AND k.scope_hash = new_scope_hash;
        IF FOUND THEN
            outcome := CASE WHEN NOT is_final THEN 'other' WHEN same_payload THEN 'completed' ELSE 'mismatched' END;
            IF outcome <> 'completed' THEN
                stored_headers := NULL;
                stored_body := NULL;
            END IF;
            RETURN;
        END IF;
        IF NOT pg_catalog.pg_try_advisory_xact_lock(new_scope_hash) THEN
            outcome := 'conflicted';
            RETURN;
        END IF;
        INSERT INTO django_idempotency_idempotencykey AS k (key_hash, scope_hash, scope, operation, key, fingerprint,
            status, policy, attempt, created_at, updated_at, expires_at, locked_until)
        VALUES (new_key_hash, new_scope_hash, new_scope, new_operation, new_key, new_fingerprint,
            'in_progress', NULL, 1, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(),
            pg_catalog.clock_timestamp() + ttl * interval '1 second', NULL)
        ON CONFLICT (key_hash, scope_hash) DO NOTHING
        RETURNING k.id INTO row_id;
        IF FOUND THEN
            outcome := 'claimed';
            RETURN;
        END IF;
    END LOOP;
    outcome := 'other';
END $$
"""

# Raises if the claim is lost, so that a COMMIT behind it in the same message is not reached. The code is our own.
COMPLETE = """
CREATE FUNCTION {schema}.idempotency_complete_1(
    own_key_hash bigint, own_scope_hash bigint, own_id bigint, own_attempt integer,
    new_code integer, new_headers text, new_body bytea, ttl double precision, about_type text, about_id text
) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    written bigint;
BEGIN
    UPDATE django_idempotency_idempotencykey k
    SET status = 'completed', status_code = new_code, headers = new_headers, body = new_body,
        completed_at = pg_catalog.clock_timestamp(), updated_at = pg_catalog.clock_timestamp(), locked_until = NULL,
        resource_type = COALESCE(about_type, k.resource_type), resource_id = COALESCE(about_id, k.resource_id),
        expires_at = COALESCE(pg_catalog.clock_timestamp() + ttl * interval '1 second', k.expires_at)
    WHERE k.key_hash = own_key_hash AND k.scope_hash = own_scope_hash AND k.id = own_id
        AND k.attempt = own_attempt AND k.status::text = 'in_progress';
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> 1 THEN
        RAISE 'django_idempotency: claim lost in % rows', written USING ERRCODE = 'IK001';
    END IF;
END $$
"""

SIGNATURES = (
    "idempotency_claim_1(bigint, bigint, text, text, text, bytea, double precision)",
    "idempotency_complete_1(bigint, bigint, bigint, integer, integer, text, bytea, double precision, text, text)",
)

# The schema of the key table, which need not be the first of the search_path. No row: the functions are not made, and
# requests do without them. Citus would not run them on the node of the tenant.
PLACE = """
SELECT pg_catalog.quote_ident(n.nspname)
FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE t.oid = pg_catalog.to_regclass('django_idempotency_idempotencykey')
    AND EXISTS (SELECT 1 FROM pg_catalog.pg_language l
        WHERE l.lanname = 'plpgsql' AND pg_catalog.has_language_privilege(l.oid, 'USAGE'))
    AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_extension e WHERE e.extname = 'citus')
"""


def _schema(schema_editor: BaseDatabaseSchemaEditor) -> str | None:
    if schema_editor.connection.vendor != "postgresql":
        return None
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(PLACE)
        row: Any = cursor.fetchone()
    return None if row is None else str(row[0])


def create(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if (schema := _schema(schema_editor)) is not None:
        for text in (CLAIM, COMPLETE):
            schema_editor.execute(text.replace("{schema}", schema), None)


def drop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if (schema := _schema(schema_editor)) is not None:
        for signature in SIGNATURES:
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {schema}.{signature}", None)


class Migration(migrations.Migration):
    dependencies = [("django_idempotency", "0005_failed_and_resource_indexes")]

    operations = [migrations.RunPython(create, drop, elidable=False, hints={"model_name": "idempotencykey"})]
