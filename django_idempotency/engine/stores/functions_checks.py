"""Whether PostgreSQL has the functions of migration 0006, and lets this role call them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Warning

from .functions import CALLABLE, LOOKED_UP, pay
from .round_trips import takes_several

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def check_functions(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check the functions where they would be called. Sends one query."""
    if not pay(connection):
        return
    with connection.cursor() as cursor:
        if not takes_several(cursor):
            return
        cursor.execute(CALLABLE, LOOKED_UP)
        has_table, found = cursor.fetchone()
    if has_table and not found:  # without the table, the first `migrate` makes both
        yield Warning(
            f"database {connection.alias!r} has no functions of django_idempotency that may be called. Keyed requests "
            "go on without them, and take longer.",
            hint="Run: python manage.py migrate. The functions need the owner of the key table, and the role of the "
            "server needs the right EXECUTE.",
            id="django_idempotency.W007",
        )
