"""docs/upgrade_from_0_3_0.sql, then `migrate`: tables of 0.3.0 become the present ones, and each key stays the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_idempotency import OutcomeUnknown, run_once
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.states import Clock, Seen
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.acceptance.pages import ROOT
from tests.step_rows import add_step

OLD = Path(__file__).with_name("tables_of_0_3_0.sql")
SCRIPT = ROOT / "docs/upgrade_from_0_3_0.sql"
TABLES = [model._meta.db_table for model in (IdempotencyKey, IdempotencyStep)]
STATES = {
    "atomic": "completed",
    "charged": "completed",
    "running": "in_flight",
    "stuck": "stuck",
    "killed": "in_doubt",
    "killed-charged": "half_done",
    "failed": "failed",
    "doubt": "in_doubt",
    "half": "half_done",
    "lost": "half_done",
    "fetched": "failed",
}
SHAPE = """
SELECT 'column', table_name, column_name, concat_ws(' ', data_type, character_maximum_length, is_nullable,
    column_default, collation_name) FROM information_schema.columns
    WHERE table_schema = %s AND table_name = ANY(%s)
UNION ALL SELECT 'constraint', relname, conname, pg_get_constraintdef(pg_constraint.oid) FROM pg_constraint
    JOIN pg_class ON pg_class.oid = conrelid WHERE relnamespace = %s::regnamespace AND relname = ANY(%s)
    AND contype <> 'n'
UNION ALL SELECT 'index', tablename, indexname, regexp_replace(indexdef, ' ON [a-z]+[.]', ' ON ') FROM pg_indexes
    WHERE schemaname = %s AND tablename = ANY(%s)
"""


@pytest.fixture
def tables_of_0_3_0(transactional_db: None) -> Iterator[Any]:
    """Keys in each state, written by 0.3.0's columns into 0.3.0's tables in a schema of their own."""
    if connection.vendor != "postgresql":
        pytest.skip("NOT RUN: the script is for PostgreSQL")
    fill()
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA upgraded; SET search_path TO upgraded")
        try:
            cursor.execute(OLD.read_text())
            for table in TABLES:
                cursor.execute(
                    "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
                    "WHERE table_schema = 'upgraded' AND table_name = %s",
                    [table],
                )
                (columns,) = cursor.fetchone()
                cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM public.{table}")
                # The next id, as `pg_dump` keeps it: the rows bring theirs.
                cursor.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}")
            yield cursor
        finally:
            cursor.execute("RESET search_path; DROP SCHEMA upgraded CASCADE")


@pytest.fixture
def upgraded(tables_of_0_3_0: Any) -> dict[str, Any]:
    """The upgrade; gives what the keys were before."""
    tables_of_0_3_0.execute("SET search_path TO public")
    before = rows()
    tables_of_0_3_0.execute("SET search_path TO upgraded")
    tables_of_0_3_0.execute(SCRIPT.read_text())
    migrate(tables_of_0_3_0)
    return before


def migrate(cursor: Any) -> None:
    """What a user types next. 0.3.0 has applied the first migration; every later one is still to come."""
    cursor.execute(
        "CREATE TABLE django_migrations (LIKE public.django_migrations INCLUDING ALL); "
        "INSERT INTO django_migrations SELECT * FROM public.django_migrations "
        "WHERE app <> 'django_idempotency' OR name = '0001_initial'; "
        "SELECT setval(pg_get_serial_sequence('django_migrations', 'id'), max(id)) FROM django_migrations"
    )
    cursor.execute("SET search_path TO upgraded, public")  # the tables of permissions are there
    call_command("migrate", "django_idempotency", verbosity=0)
    cursor.execute("SET search_path TO upgraded")


def fill() -> None:
    made = {
        "atomic": create_key("atomic", **WHERE),
        "charged": create_key("charged", status="completed", steps={"charge": "ch_1"}, **WHERE),
        "running": create_key("running", status="in_progress", in_doubt=["charge"], on_abandoned="hold", **WHERE),
        "stuck": create_key("stuck", status="abandoned", **WHERE),
        "killed": create_key("killed", status="abandoned", in_doubt=["charge"], on_abandoned="hold", **WHERE),
        "killed-charged": create_key("killed-charged", status="abandoned", steps={"charge": "ch_1"}, **WHERE),
        "failed": create_key("failed", status="failed", **WHERE),
        "doubt": create_key("doubt", steps={"fee": 1}, in_doubt=["charge"], on_abandoned="hold", **WHERE),
        "half": create_key("half", steps={"charge": "ch_1"}, on_abandoned="retry", **WHERE),
        "lost": create_key("lost", steps={"charge": "ch_1"}, **WHERE),
        "fetched": create_key("fetched", status="failed", **WHERE),
    }
    made["lost"].steps.update(result=None)
    add_step(made["fetched"], "rate", kind="fetch", finished_at=Clock(), result='{"value": 7}')
    IdempotencyKey.objects.filter(policy="retry-keyed").update(policy="retry")  # the default of 0.3.0


WHERE: Any = {"scope": "s", "operation": "pay"}


def rows() -> dict[str, Any]:
    """Each key and its steps, but the time since which a key needs attention, which 0.3.0 did not keep."""
    keys = {row.pop("key"): row | {"attention_at": None} for row in IdempotencyKey.objects.values()}
    for row in keys.values():
        row["steps"] = list(IdempotencyStep.objects.filter(key=row["id"]).order_by("pk").values())
    return keys


def shape(schema: str) -> set[Any]:
    with connection.cursor() as cursor:
        cursor.execute(SHAPE, [schema, TABLES] * 3)
        return set(cursor.fetchall())


def test_the_tables_are_those_of_a_new_project(upgraded: dict[str, Any]) -> None:
    """In their columns, constraints and indexes."""
    assert shape("upgraded") == shape("public")


def test_each_key_is_what_it_was(upgraded: dict[str, Any]) -> None:
    """In its counts, its hashes and the hashes of its steps."""
    assert rows() == upgraded
    keys = IdempotencyKey.objects.annotate(now=Clock())
    assert {row.key: Seen(row, row.now).state.name for row in keys} == STATES
    attention = IdempotencyKey.objects.filter(attention_at__isnull=False).values_list("key", flat=True)
    assert set(attention) == {"doubt", "half", "lost"}


def test_no_retry_charges_again(upgraded: dict[str, Any]) -> None:
    """What is half done goes on from its charge, and what is in doubt waits for a person."""
    book: list[str] = []

    def retry(key: str) -> Any:
        work = lambda operation: operation.call("charge", book.append, key)  # noqa: E731
        return run_once(work, scope="s", key=key, operation="pay", lease=60, on_abandoned="hold").value

    assert [retry("half"), retry("killed-charged")] == ["ch_1", "ch_1"]
    for key in ("doubt", "killed"):
        with pytest.raises(OutcomeUnknown):
            retry(key)
    assert book == []
    assert [retry("stuck"), retry("failed"), book] == [None, None, ["stuck", "failed"]]


def test_a_script_that_is_killed_has_changed_nothing(tables_of_0_3_0: Any) -> None:
    """After each of its statements; then it is run once more, to its end."""
    statements = re.findall(r"[^;]+;\n", re.sub(r"--.*", "", SCRIPT.read_text()))
    before = shape("upgraded")
    assert (len(statements), statements[-1].strip()) == (13, "COMMIT;")
    for number in range(1, len(statements)):
        killed = connection.copy()
        try:
            with killed.cursor() as cursor:
                cursor.execute("SET search_path TO upgraded; SELECT pg_backend_pid()")
                cursor.nextset()
                (session,) = cursor.fetchone()
                for statement in statements[:number]:  # psql sends them one by one
                    cursor.execute(statement)
                tables_of_0_3_0.execute("SELECT pg_terminate_backend(%s, 10000)", [session])
        finally:
            killed.close()
        assert shape("upgraded") == before
    for statement in statements:
        tables_of_0_3_0.execute(statement)
    assert shape("upgraded") == shape("public")


@pytest.mark.only_on("postgresql")
def test_before_the_script_the_check_leads_to_it(transactional_db: None) -> None:
    """What somebody creates by hand would stand in the script's way."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA upgraded; SET search_path TO upgraded")
        try:
            cursor.execute(OLD.read_text())
            messages = {message.id[-4:]: message.hint for message in store_for("default").check()}
        finally:
            cursor.execute("RESET search_path; DROP SCHEMA upgraded CASCADE")
    assert messages == {
        "W007": "The table is from an earlier version. Create nothing by hand: upgrade it as docs/upgrading.md shows."
    }
