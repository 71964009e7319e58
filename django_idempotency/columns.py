"""Columns and indexes that differ between databases. Migrations import these classes, so their names must stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class _Exact:
    """A text that is compared byte by byte on every database.

    By default, "abc" and "ABC ", or "a" and "á", are equal texts for MySQL and MariaDB. On PostgreSQL, only an index
    with the collation "C" can find texts with a given beginning. The field sets the collation of its column, so a later
    `AlterField` keeps the collation.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        column = super().db_type(connection)  # type: ignore[misc]
        return f"{column} CHARACTER SET utf8mb4" if connection.vendor == "mysql" else column

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)  # type: ignore[misc]
        return {**parameters, "collation": exact_collation(connection)}


def exact_collation(connection: Any) -> str | None:
    """The collation that compares bytes and does not ignore spaces at the end. If the result is None, the default
    collation already does this.
    """
    if connection.vendor != "mysql":
        return "C" if connection.vendor == "postgresql" else None
    return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"


class ExactCharField(_Exact, models.CharField):  # type: ignore[type-arg]
    """A short text that is compared byte by byte."""


class ExactTextField(_Exact, models.TextField):  # type: ignore[type-arg]
    """A text of any length that is compared byte by byte."""


class IndexWhereSet(models.Index):
    """An index of the few rows in which one column is set. The index is nearly empty while no key needs attention.

    MySQL and MariaDB have no partial indexes, so they get a plain index. With `models.Index(condition=…)`, Django would
    print a warning on MySQL and MariaDB.

    Args:
        set_column: the index has only the rows in which this column is not NULL, or with "-" before its name, is NULL.
        plain_fields: the columns of the plain index, if they are not the columns of the partial index.
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
            column = self.set_column.removeprefix("-")
            condition = models.Q((f"{column}__isnull", column != self.set_column))
            index = models.Index(fields=self.fields, name=self.name, condition=condition)
        else:
            index = models.Index(fields=self.plain_fields or self.fields, name=self.name)
        return index.create_sql(model, schema_editor, using, **kwargs)
