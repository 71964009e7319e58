"""Columns and indexes whose SQL depends on the database. Migrations import them, so their names must not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class _Exact:
    """A text field that every database compares byte by byte.

    By default, MySQL and MariaDB ignore accents and case, so "Á" equals "a"; MariaDB also ignores trailing spaces. On
    PostgreSQL, the column has the "C" collation, so that a plain index can also serve prefix searches. The
    collation survives an `AlterField`.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        column = super().db_type(connection)  # type: ignore[misc]
        return f"{column} CHARACTER SET utf8mb4" if connection.vendor == "mysql" else column

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)  # type: ignore[misc]
        return {**parameters, "collation": exact_collation(connection)}


def exact_collation(connection: Any) -> str | None:
    """Return the collation that compares bytes, including trailing spaces, or None for SQLite, which needs none."""
    if connection.vendor != "mysql":
        return "C" if connection.vendor == "postgresql" else None
    return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"


class ExactCharField(_Exact, models.CharField):  # type: ignore[type-arg]
    """Short text, compared byte by byte on every database."""


class ExactTextField(_Exact, models.TextField):  # type: ignore[type-arg]
    """Text of any length, compared byte by byte on every database."""


class IndexWhereSet(models.Index):
    """An index on the rows where `set_column` is set. There are few of them: most keys, for example, have no error.

    On MySQL and MariaDB, which have no partial indexes, this is a plain index on all rows. There,
    `models.Index(condition=…)` would print a warning.

    Args:
        set_column: the index contains only the rows where this column is not NULL.
        plain_fields: the columns of the plain index, if they differ from those of the partial index.
    """

    def __init__(self, *, set_column: str, plain_fields: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_column, self.plain_fields = set_column, tuple(plain_fields)

    def deconstruct(self) -> Any:
        path, args, kwargs = super().deconstruct()
        plain = {"plain_fields": self.plain_fields} if self.plain_fields else {}
        return path, args, {**kwargs, "set_column": self.set_column, **plain}

    def create_sql(self, model: Any, schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any) -> Any:
        if schema_editor.connection.features.supports_partial_indexes:
            condition = models.Q((f"{self.set_column}__isnull", False))
            index = models.Index(fields=self.fields, name=self.name, condition=condition)
        else:
            index = models.Index(fields=self.plain_fields or self.fields, name=self.name)
        return index.create_sql(model, schema_editor, using, **kwargs)
