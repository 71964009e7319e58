"""The own tables: what the database refuses, indexes that are missing, and collations that take two texts for one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.states import Clock
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.sql import instead

pytestmark = pytest.mark.django_db(transaction=True)
KEYS, STEPS = IdempotencyKey._meta.db_table, IdempotencyStep._meta.db_table


def found() -> list[Any]:
    return [message for message in store_for("default").check() if message.id[-4:] in ("W007", "W008")]


def test_migrated_tables_are_fine() -> None:
    assert found() == []


@pytest.mark.parametrize("name", ["idempotency_expires_idx", "idempotency_failed_idx"])
def test_w007_names_an_index_that_is_missing(name: str) -> None:
    """As after the table was rebuilt by hand."""
    model = IdempotencyKey
    index = next(index for index in model._meta.indexes if index.name == name)
    with connection.schema_editor() as editor:
        editor.remove_index(model, index)
    try:
        (message,) = found()
    finally:
        with connection.schema_editor() as editor:
            editor.add_index(model, index)
    assert message.id == "django_idempotency.W007"
    assert message.msg.startswith(f"table {model._meta.db_table!r} of database 'default' lacks {name}. ")
    assert message.hint == "Create them as `python manage.py sqlmigrate django_idempotency 0001` shows."


def test_the_database_refuses_a_time_of_attention_that_does_not_fit() -> None:
    """It is set exactly if the key has failed and one of its counts is above 0."""
    row = create_key("k")
    refused = set()
    for status, unknown, effects, since in product(
        ("in_progress", "completed", "failed"), (0, 1), (0, 1), (None, Clock())
    ):
        try:
            with transaction.atomic():
                IdempotencyKey.objects.filter(pk=row.pk).update(
                    status=status, unknown=unknown, effects=effects, attention_at=since
                )
                transaction.set_rollback(True)
        except DatabaseError:
            refused.add((status, unknown, effects, since is not None))
    assert refused == {
        *product(("in_progress", "completed"), (0, 1), (0, 1), (True,)),
        ("failed", 0, 0, True),
        ("failed", 0, 1, False),
        ("failed", 1, 0, False),
        ("failed", 1, 1, False),
    }


@pytest.mark.only_on("postgresql", "mysql")  # SQLite makes the whole table anew, with what the model has
def test_w007_names_the_unique_constraint() -> None:
    constraint, _ = IdempotencyKey._meta.constraints
    with connection.schema_editor() as editor:
        editor.remove_constraint(IdempotencyKey, constraint)
    try:
        (message,) = found()
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(IdempotencyKey, constraint)
    assert "lacks idempotency_key_uniq. Without its unique constraint a key could run twice" in message.msg


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(("table", "column"), [(KEYS, "key"), (KEYS, "scope"), (STEPS, "name")])
def test_w008_names_a_column_whose_collation_ignores_capitals(table: str, column: str) -> None:
    """The hint mends it."""
    size = 100 if column == "name" else 255
    usual = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
    change = f"ALTER TABLE {table} MODIFY `{column}` varchar({size}) CHARACTER SET utf8mb4 COLLATE {{}} NOT NULL"
    with instead(change.format("utf8mb4_general_ci"), change.format(usual)):
        (message,) = found()
        with connection.cursor() as cursor:
            cursor.execute(message.hint)
        assert found() == []
    assert message.id == "django_idempotency.W008"
    assert f"column {column!r} of table {table!r}" in message.msg
    assert "'utf8mb4_general_ci', under which two different texts may be equal." in message.msg
    assert message.hint.endswith(f"COLLATE {usual} NOT NULL")
