"""The check of the own tables: indexes that are missing, and collations that take two texts for one."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
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
    assert message.id == "django_idempotency.W008"
    assert f"column {column!r} of table {table!r}" in message.msg
    assert "'utf8mb4_general_ci', under which two different texts may be equal." in message.msg
    assert message.hint.endswith(f"COLLATE {usual} NOT NULL")
