"""The checks of a MariaDB or MySQL server's set-up, on scratch databases of the server at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections

from django_idempotency.checks import check_databases
from tests.databases.clusters.aliases import alias

pytestmark = pytest.mark.only_on("mysql")
KEYS, STEPS, ORDERS = "django_idempotency_idempotencykey", "django_idempotency_idempotencystep", "shopapp_order"
Scratch = Callable[..., list[Any]]


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def scratch_alias(tables: dict[str, str], options: dict[str, Any]) -> Iterator[None]:
    """An alias of a new database, with these tables in these storage engines."""
    execute(
        "DROP DATABASE IF EXISTS idempotency_scratch",
        "CREATE DATABASE idempotency_scratch",
        *(f"CREATE TABLE idempotency_scratch.{table} (id INT) ENGINE = {engine}" for table, engine in tables.items()),
    )
    options = {**connection.settings_dict["OPTIONS"], **options}
    try:
        with alias("scratch", {"NAME": "idempotency_scratch", "OPTIONS": options}):
            yield
    finally:
        execute("DROP DATABASE idempotency_scratch")


@pytest.fixture(autouse=True)
def _unblocked(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def scratch(settings: Any) -> Scratch:
    settings.IDEMPOTENCY = {"USING": "scratch"}

    def check(*engines: str) -> list[Any]:
        with scratch_alias(dict(zip((KEYS, STEPS, ORDERS), engines, strict=False)), {}):
            found = [*check_databases(["scratch"])]
            return [message for message in found if message.id != "django_idempotency.W007"]  # these tables are bare

    return check


def test_innodb_is_fine(scratch: Scratch) -> None:
    """Also tables that are not there yet."""
    assert scratch("InnoDB", "InnoDB", "InnoDB") == []
    assert scratch() == []


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
def test_e009_a_table_of_keys_that_does_not_roll_back(scratch: Scratch, engine: str) -> None:
    """Each of the two tables."""
    keys, steps = scratch(engine, engine, "InnoDB")
    assert (keys.id, steps.id) == ("django_idempotency.E009",) * 2
    assert keys.msg.startswith(f"database 'scratch' keeps table {KEYS!r} in the storage engine {engine!r}.")
    assert keys.hint.endswith(f"run: ALTER TABLE {KEYS} ENGINE = InnoDB")
    assert steps.hint.endswith(f"run: ALTER TABLE {STEPS} ENGINE = InnoDB")


def test_e009_stops_migrate(settings: Any) -> None:
    """Before the tables are there."""
    settings.IDEMPOTENCY = {"USING": "scratch"}
    with scratch_alias({}, {"init_command": "SET SESSION default_storage_engine = MyISAM"}):
        with pytest.raises(SystemCheckError, match=r"django_idempotency\.E009"):
            call_command("migrate", database="scratch", verbosity=0, skip_checks=False)
        assert connections["scratch"].introspection.table_names() == []


def test_w006_tables_of_the_project_that_do_not_roll_back(scratch: Scratch) -> None:
    """A warning: not every table is written to by a protected view."""
    (message,) = scratch("InnoDB", "InnoDB", "MyISAM")
    assert message.id == "django_idempotency.W006"
    assert message.msg.startswith(f"database 'scratch' keeps {ORDERS} in a storage engine without transactions.")
