-- Citus: let a transaction that claims a key, in a plain table on the coordinator, commit in two phases.
-- databases.md says what to know before. Run it on the coordinator, after each migration that makes the tables.
-- Citus counts the coordinator as a node that was written to only if a table that Citus knows was written to.
BEGIN;
CREATE TABLE idempotency_two_phase (nothing int);
SELECT citus_add_local_table_to_metadata('idempotency_two_phase');
CREATE FUNCTION idempotency_two_phase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM idempotency_two_phase;  -- no row, but a write
    RETURN NULL;
END $$;
-- A claim inserts a key, or begins its next attempt. A leased write inserts a step.
CREATE TRIGGER idempotency_two_phase
    AFTER INSERT OR UPDATE OF attempt ON django_idempotency_idempotencykey
    FOR EACH STATEMENT EXECUTE FUNCTION idempotency_two_phase();
CREATE TRIGGER idempotency_two_phase
    AFTER INSERT ON django_idempotency_idempotencystep
    FOR EACH STATEMENT EXECUTE FUNCTION idempotency_two_phase();
COMMIT;
