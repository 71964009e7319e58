"""Roles of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a role that may not know what other roles do."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE ROLE scraper; GRANT SELECT ON ALL TABLES IN SCHEMA public TO scraper")
        cursor.execute("SET LOCAL ROLE scraper")
        yield
        transaction.set_rollback(True)
