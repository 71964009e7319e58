"""SQL of a test's own, on this thread's connection or on another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import pytest
from django.db import connection, connections

P = ParamSpec("P")
T = TypeVar("T")
TABLE = "django_idempotency_idempotencykey"
NO_TABLE = (f"ALTER TABLE {TABLE} RENAME TO elsewhere", f"ALTER TABLE elsewhere RENAME TO {TABLE}")


def isolated(target: Callable[P, T]) -> Callable[P, T]:
    """The same for another thread, which has connections of its own and leaves none of them open."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return target(*args, **kwargs)
        finally:
            connections.close_all()

    return run


def ask(sql: str) -> Any:
    """The first row."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def has_setting(name: str) -> None:
    """Skip the test if this PostgreSQL is too old for the setting."""
    if ask(f"SELECT count(*) FROM pg_settings WHERE name = '{name}'") == (0,):
        pytest.skip(f"this PostgreSQL has no {name}")


@contextmanager
def instead(forwards: str, backwards: str) -> Iterator[None]:
    """Change something for the length of the block, such as with `NO_TABLE`."""
    with connection.cursor() as cursor:
        cursor.execute(forwards)
        try:
            yield
        finally:
            cursor.execute(backwards)
