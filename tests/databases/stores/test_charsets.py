"""MySQL and MariaDB with a character set that lacks some letters: of the tables, or of the connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from django_idempotency import Operation, run_once
from django_idempotency.models import IdempotencyKey
from tests.leases import Broken

pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]
TABLE = IdempotencyKey._meta.db_table
MODIFY = f"ALTER TABLE {TABLE} MODIFY last_error longtext CHARACTER SET"


@contextmanager
def of_the_column() -> Iterator[None]:
    """As of a table from before utf8mb4."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT character_set_name, collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = 'last_error'",
            [TABLE],
        )
        charset, collation = cursor.fetchone()
        cursor.execute(f"{MODIFY} latin1")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"{MODIFY} {charset} COLLATE {collation}")


@contextmanager
def of_the_connection() -> Iterator[None]:
    """As OPTIONS["charset"] sets it."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**options, "charset": "latin1"}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = options


@pytest.mark.parametrize("lacking", [of_the_column, of_the_connection])
def test_a_key_fails_also_if_the_error_has_other_letters(lacking: Callable[..., Iterator[None]]) -> None:
    """The next retry runs at once, and need not wait for the lease."""

    def fails_at_first(operation: Operation) -> int:
        if operation.attempt == 1:
            raise type("Нет", (Broken,), {})
        return operation.attempt

    with lacking():
        with pytest.raises(Broken):
            run_once(fails_at_first, scope="s", key="k", operation="pay", lease=60)
        assert r".\u041d\u0435\u0442: line " in str(IdempotencyKey.objects.get().last_error)
        assert run_once(fails_at_first, scope="s", key="k", operation="pay", lease=60).value == 2
