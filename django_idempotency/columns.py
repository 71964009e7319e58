"""This module defines columns and indexes that need different SQL on each kind of database. Migrations import the
classes of this module, so the names of these classes must not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class _Exact:
    """If a text field has this mixin, every database compares the texts of the field byte by byte.

    By default, MySQL and MariaDB ignore accents and capital letters, so "Á" and "a" are equal texts. MariaDB also
    ignores spaces at the end of a text. On PostgreSQL, the column has the collation "C". With this collation, a normal
    index also finds texts by their first letters. If a later migration changes the field with `AlterField`, the column
    keeps its collation.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        column = super().db_type(connection)  # type: ignore[misc]
        return f"{column} CHARACTER SET utf8mb4" if connection.vendor == "mysql" else column

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)  # type: ignore[misc]
        return {**parameters, "collation": exact_collation(connection)}


def exact_collation(connection: Any) -> str | None:
    """Return the name of a collation that compares bytes and does not ignore spaces at the end of a text.

    On SQLite, the result is None, because SQLite's default collation already compares bytes.
    """
    if connection.vendor != "mysql":
        return "C" if connection.vendor == "postgresql" else None
    return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"


class ExactCharField(_Exact, models.CharField):  # type: ignore[type-arg]
    """This field stores a short text, and every database compares the text byte by byte."""


class ExactTextField(_Exact, models.TextField):  # type: ignore[type-arg]
    """This field stores a text of any length, and every database compares the text byte by byte."""


class IndexWhereSet(models.Index):
    """This index contains only the rows in which the column `set_column` is set.

    For example, the index for the column `last_error` contains only rows with an error text. Most rows have no error
    text, so this index is small.

    MySQL and MariaDB have no partial indexes, so these databases get a plain index of all rows. The models do not use
    Django's `models.Index(condition=…)`, because Django would print a warning on MySQL and MariaDB.

    Args:
        set_column: the index has only the rows in which this column is not NULL.
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
            condition = models.Q((f"{self.set_column}__isnull", False))
            index = models.Index(fields=self.fields, name=self.name, condition=condition)
        else:
            index = models.Index(fields=self.plain_fields or self.fields, name=self.name)
        return index.create_sql(model, schema_editor, using, **kwargs)
