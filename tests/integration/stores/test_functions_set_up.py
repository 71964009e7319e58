"""Which functions are called: those that stand beside the key table and belong to its owner, in each schema its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.checks import check_databases
from django_idempotency.engine.protocol.outcomes import Claimed, Completed
from django_idempotency.engine.stores import functions, store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import a_claim
from tests.functions import (
    BY_FUNCTION,
    BY_STATEMENT,
    CLAIM,
    COMPLETE,
    NAMED_BACK,
    RENAMED,
    WAYS,
    changed,
    going,
    look_again,
    migration,
    request_like,
    sql,
)
from tests.plans import analyze, make_many
from tests.servers import eventually
from tests.sql import ask
from tests.tap import tapped, verbs

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
TABLE = IdempotencyKey._meta.db_table
RESTORED = "test_idempotency_restored"
TENANTS = ("tenant_a", "tenant_b")
PLANTED = "AS $$ BEGIN RAISE 'the planted function was called'; END $$ LANGUAGE plpgsql"


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with going("functions"):
        yield


def first_message() -> list[str]:
    """What the next request begins with."""
    with tapped() as tap:
        return first_of(tap)


def first_of(tap: Any) -> list[str]:
    look_again()
    tap.take()
    request_like()
    return next(message for message in verbs(tap.take()) if message != ["BEGIN", "SELECT", "COMMIT"])


def test_the_migrated_ones_are_called() -> None:
    """By default, every role may execute them."""
    assert first_message() == BY_FUNCTION


@pytest.mark.parametrize("function", [CLAIM, COMPLETE])
def test_one_of_another_owner_is_not_called(function: str) -> None:
    """A stranger who may create functions must not get the rights of the server's role."""
    with changed(
        "CREATE ROLE stranger",
        f"ALTER FUNCTION {function} OWNER TO stranger",
        back=(f"ALTER FUNCTION {function} OWNER TO CURRENT_USER", "DROP ROLE stranger"),
    ):
        assert first_message() == BY_STATEMENT


def test_one_of_another_schema_is_not_called() -> None:
    """Even if that schema comes first in the search_path."""
    planted = f"CREATE FUNCTION planted.{CLAIM} RETURNS void {PLANTED}"
    with changed("CREATE SCHEMA planted", planted, back=("DROP SCHEMA planted CASCADE",)), tapped() as tap:
        sql("SET search_path TO planted, public")
        assert first_of(tap) == BY_STATEMENT


def test_an_overloaded_one_is_not_called() -> None:
    """The literals that the driver writes would fit it better. The types in the call do not."""
    overloaded = CLAIM.replace("double precision", "integer")
    with changed(f"CREATE FUNCTION {overloaded} RETURNS void {PLANTED}", back=(f"DROP FUNCTION {overloaded}",)):
        assert first_message() == BY_FUNCTION


@pytest.mark.parametrize("function", [CLAIM, COMPLETE])
def test_one_that_may_not_be_executed_is_not_called(function: str) -> None:
    """The role of the server has lost the right."""
    with (
        changed(
            "CREATE ROLE serving",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO serving",
            "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO serving",
            f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC",
            back=(
                f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC",
                "DROP OWNED BY serving",
                "DROP ROLE serving",
            ),
        ),
        tapped() as tap,
    ):
        sql("SET ROLE serving")
        assert first_of(tap) == BY_STATEMENT
        sql("RESET ROLE", f"GRANT EXECUTE ON FUNCTION {function} TO serving", "SET ROLE serving")
        assert first_of(tap) == BY_FUNCTION


class TestCheck:
    def test_it_tells_of_missing_functions(self) -> None:
        """With what to do."""
        with changed(RENAMED[1], back=(NAMED_BACK[1],)):
            (message,) = check_databases(None, databases=["default"])
        assert message.id == "django_idempotency.W007"
        assert "database 'default' has no functions" in message.msg
        assert "manage.py migrate" in str(message.hint)

    def test_it_is_silent_where_they_are(self) -> None:
        """After the migration."""
        assert check_databases(None, databases=["default"]) == []

    def test_it_is_silent_where_connections_are_not_kept(self) -> None:
        """They would not be called there."""
        with changed(RENAMED[1], back=(NAMED_BACK[1],)), going("statements"):
            assert check_databases(None, databases=["default"]) == []

    def test_it_is_silent_with_a_driver_that_calls_none(self) -> None:
        """Binding on the server takes one statement in each message, as psycopg2 does."""
        with (
            changed(RENAMED[1], back=(NAMED_BACK[1],)),
            going("functions"),
            tapped(OPTIONS={"server_side_binding": True}),
        ):
            assert check_databases(None, databases=["default"]) == []

    def test_it_is_silent_before_the_first_migration(self) -> None:
        """`migrate` runs the checks first, and makes table and functions together."""
        with changed(
            "CREATE SCHEMA empty", "SET search_path TO empty", back=("RESET search_path", "DROP SCHEMA empty")
        ):
            assert check_databases(None, databases=["default"]) == []


@pytest.fixture
def _schemas() -> Iterator[None]:
    """Two tenants. The second has tables, and no functions yet."""
    for schema in TENANTS:
        sql(f"CREATE SCHEMA {schema}")
        for model in (IdempotencyKey, IdempotencyStep):
            table = model._meta.db_table
            sql(f"CREATE TABLE {schema}.{table} (LIKE public.{table} INCLUDING ALL)")
    sql("SET search_path TO tenant_a")
    with connection.schema_editor() as editor:
        migration.create(None, editor)
    sql("RESET search_path")
    yield
    sql(f"DROP SCHEMA {', '.join(TENANTS)} CASCADE")


@pytest.mark.usefixtures("_schemas")
class TestTenants:
    def test_each_schema_has_functions_of_its_own(self) -> None:
        """They read and write the tables of their schema."""
        with tapped() as tap:
            sql("SET search_path TO tenant_a")
            assert first_of(tap) == BY_FUNCTION
        assert (ask(f"SELECT count(*) FROM tenant_a.{TABLE}"), ask(f"SELECT count(*) FROM public.{TABLE}")) == (
            (1,),
            (0,),
        )

    def test_a_schema_without_them_does_not_borrow(self) -> None:
        """Functions of a shared schema are another migration's."""
        with tapped() as tap:
            sql("SET search_path TO tenant_b, public")
            assert first_of(tap) == BY_STATEMENT
        assert ask(f"SELECT count(*) FROM tenant_b.{TABLE}") == (1,)

    def test_the_others_keep_theirs(self) -> None:
        """Packages for tenants name the schema of a connection: one schema without functions slows no other down."""
        with tapped() as tap:
            for schema, expected in (("tenant_a", BY_FUNCTION), ("tenant_b", BY_STATEMENT), ("tenant_a", BY_FUNCTION)):
                connection.schema_name = schema  # type: ignore[attr-defined]
                sql(f"SET search_path TO {schema}")
                tap.take()
                request_like()
                assert expected in verbs(tap.take())

    @pytest.mark.parametrize("function", [CLAIM, COMPLETE])
    def test_each_is_told_once_and_done_without_for_a_minute(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        """A tenant whose functions go away, too."""
        monkeypatch.setattr(functions, "monotonic", lambda: 1000.0)
        with tapped() as tap:
            connection.schema_name = "tenant_a"  # type: ignore[attr-defined]
            sql("SET search_path TO tenant_a")
            assert first_of(tap) == BY_FUNCTION
            sql(f"DROP FUNCTION {function}")
            tap.take()
            request_like(key="heals")
            assert verbs(tap.take())[0] == BY_FUNCTION
            for now in (1059.0, 2000.0):
                monkeypatch.setattr(functions, "monotonic", lambda now=now: now)
                request_like(key=f"at {now}")
            sent = verbs(tap.take())
        assert (sent[0], sent[2]) == (BY_STATEMENT, ["BEGIN", "SELECT", "COMMIT"])
        assert len(caplog.records) == 1

    def test_a_completion_goes_to_the_schema_of_the_next_cursor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Packages for tenants switch as a cursor is opened. A view that was elsewhere has not switched back yet."""
        due: list[str] = []

        def opened(wrapper: BaseDatabaseWrapper, name: str | None = None) -> Any:
            cursor = BaseDatabaseWrapper._cursor(wrapper, name)
            while due:
                cursor.execute(f"SET search_path TO {due.pop()}")
            return cursor

        def visit() -> None:
            due.append("public")
            assert ask("SELECT current_schema()") == ("public",)
            due.append("tenant_a")

        monkeypatch.setattr(type(connections["default"]), "_cursor", opened)
        with tapped() as tap:
            sql("SET search_path TO tenant_a")
            look_again()
            assert isinstance(request_like(visit), Claimed)
            assert verbs(tap.take())[-2:] == [["SET"], ["SAVEPOINT", "SELECT", "COMMIT"]]
        assert ask(f"SELECT status FROM tenant_a.{TABLE}") == ("completed",)

    def test_work_that_strays_into_a_schema_without_them_loses_its_claim(self) -> None:
        """As without functions: nothing is committed."""
        with tapped() as tap:
            sql("SET search_path TO tenant_a")
            look_again()
            with pytest.raises(Exception, match="search_path, USE"):
                request_like(lambda: sql("SET search_path TO tenant_b"))
            assert verbs(tap.take())[-4:] == [
                ["SAVEPOINT", "SELECT", "COMMIT"],
                ["ROLLBACK"],
                ["WITH", "COMMIT"],
                ["ROLLBACK"],
            ]
        assert [ask(f"SELECT count(*) FROM {schema}.{TABLE}") for schema in TENANTS] == [(0,), (0,)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_row_that_is_committed_during_the_claim(in_threads: Callable[..., list[Any]], way: str, level: str) -> None:
    """Each statement of a function has its own snapshot. In one that is older, the claim asks for a new transaction."""
    with going("functions"):
        request_like()
    row = IdempotencyKey.objects.values().get()
    IdempotencyKey.objects.all().delete()
    store = store_for("default")

    def claim(number: int) -> Any:
        sql(f"SET default_transaction_isolation TO '{level}'")
        try:
            return request_like()
        except DatabaseError as error:
            return store.may_repeat(error)

    def wait_and_claim(number: int) -> Any:
        return in_threads(1, claim)[0]

    with going(way), ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            IdempotencyKey.objects.create(**row)  # without the advisory lock
            running = pool.submit(wait_and_claim, 0)
            eventually("the claim to wait", lambda: ask("SELECT 1 FROM pg_locks WHERE NOT granted"))
        outcome = running.result(timeout=30)
    assert isinstance(outcome, Completed) if level == "read committed" else outcome is True


@pytest.mark.django_db(transaction=False)
def test_plans_of_a_small_table_read_a_large_one_by_its_index() -> None:
    """A session keeps its plans. None of them reads the whole table."""
    scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = %s"
    make_many(1)
    analyze()

    def call(number: int) -> None:
        wanted = a_claim(key=str(number)).identity
        of = [wanted.key_hash, wanted.scope_hash, wanted.scope, wanted.operation, wanted.key]
        with connection.cursor() as cursor:
            cursor.execute(functions.CLAIM, [*of, b"f" * 32, 60.0])
            row_id = cursor.fetchone()[1]
            done = [wanted.key_hash, wanted.scope_hash, row_id, 1, 201, "[]", b"", None, None, None]
            cursor.execute(functions.COMPLETE, done)

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute(scans, [TABLE])
            return int(cursor.fetchone()[0])

    before = count()
    for number in range(10):
        call(number)
    sql(
        f"INSERT INTO {TABLE} (key_hash, scope_hash, scope, operation, key, status, attempt, created_at, updated_at, "
        "expires_at) SELECT n, -n, '', '', '', 'completed', 1, now(), now(), now() FROM generate_series(2, 20000) AS n"
    )
    for number in range(10, 20):
        call(number)
    assert count() == before


@pytest.fixture
def restored() -> Iterator[None]:
    """The default database is one that was restored from a dump of the tests' one."""
    settings, plain = connection.settings_dict, connection.settings_dict["NAME"]
    (binaries,) = ask("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    if not Path(binaries, "pg_dump").exists():
        pytest.skip(f"NOT RUN: a restored dump needs pg_dump in {binaries}, where the server is")
    environment = {
        **os.environ,
        "PGHOST": settings["HOST"],
        "PGPORT": str(settings["PORT"] or ""),
        "PGUSER": settings["USER"],
        "PGPASSWORD": settings["PASSWORD"],
    }

    def run(program: str, *arguments: str, given: str = "") -> str:
        command = [str(Path(binaries, program)), *arguments]
        return subprocess.run(
            command, input=given, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    run("dropdb", "--if-exists", "--force", RESTORED)
    run("createdb", "--template=template0", RESTORED)
    run("psql", "--quiet", "--set=ON_ERROR_STOP=1", RESTORED, given=run("pg_dump", plain))
    connection.close()
    settings["NAME"] = RESTORED
    yield
    connection.close()
    settings["NAME"] = plain
    run("dropdb", "--force", RESTORED)


@pytest.mark.usefixtures("restored")
def test_they_come_back_from_a_dump() -> None:
    """With their settings, in the schema of the table."""
    assert ask("SELECT current_database()") == (RESTORED,)
    assert first_message() == BY_FUNCTION
    assert isinstance(request_like(), Completed)


def test_a_claim_by_a_function_wins_once() -> None:
    """The second request is answered from the row."""
    assert isinstance(request_like(), Claimed)
    assert isinstance(request_like(), Completed)
