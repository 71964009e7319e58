"""PostgreSQL: whether the functions of migration 0006 may be called, and how.

They are called only where that was looked up: both stand in the schema of the key table, belong to the table's owner,
and may be executed. So a function that another role has put into a schema of the `search_path` is not called. Each
parameter has its exact type, so that no overloaded function fits better.

What a process has seen stands until a call fails. Without the functions it looks again after a minute. So a migration
that comes after the deployment, or a right that is given back, needs no restart.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...models import IdempotencyKey

if TYPE_CHECKING:
    from django.db import DatabaseError
    from django.db.backends.base.base import BaseDatabaseWrapper

CLAIM_TYPES = ("bigint", "bigint", "text", "text", "text", "bytea", "double precision")
COMPLETE_TYPES = (
    *("bigint", "bigint", "bigint", "integer", "integer", "text", "bytea"),
    *("double precision", "text", "text"),
)
CLAIM = f"SELECT * FROM idempotency_claim_1({', '.join(f'%s::{name}' for name in CLAIM_TYPES)})"
COMPLETE = f"SELECT idempotency_complete_1({', '.join(f'%s::{name}' for name in COMPLETE_TYPES)})"
SIGNATURES = (
    f"idempotency_claim_1({', '.join(CLAIM_TYPES)})",
    f"idempotency_complete_1({', '.join(COMPLETE_TYPES)})",
)
CALLABLE = """
SELECT t.oid IS NOT NULL, pg_catalog.bool_and(COALESCE(f.pronamespace = t.relnamespace AND f.proowner = t.relowner
    AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE'), false))
FROM pg_catalog.unnest(%s::text[]) AS wanted(signature)
LEFT JOIN pg_catalog.pg_proc f ON f.oid = pg_catalog.to_regprocedure(wanted.signature)
LEFT JOIN pg_catalog.pg_class t ON t.oid = pg_catalog.to_regclass(%s) GROUP BY t.oid
"""
"""Whether the key table is there, and whether the functions may be called. Parameters: `LOOKED_UP`."""
LOOKED_UP: list[Any] = [list(SIGNATURES), IdempotencyKey._meta.db_table]
UNCALLABLE = frozenset({"42883", "42501", "3F000", "XX000"})
"""undefined_function, insufficient_privilege, invalid_schema_name, internal_error: dropped while the call began"""
LOOKED_AGAIN_AFTER = 60.0
"""Seconds."""
_FOR_GOOD = float("inf")
logger = logging.getLogger("django_idempotency")


def pay(connection: BaseDatabaseWrapper) -> bool:
    """Whether connections are kept. A new connection pays a millisecond for its first call of a function."""
    settings = connection.settings_dict
    return bool(settings["CONN_MAX_AGE"] != 0 or settings["OPTIONS"].get("pool"))


class Seen:
    """What this process has seen of the functions in one alias. Threads may share the object.

    Packages for tenants name the schema that a connection is on. There, each schema has its own entry.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._until: dict[Any, float] = {}
        """By schema: until when the requests do without the functions; `_FOR_GOOD`: the functions are there."""
        self._told: set[Any] = set()

    def there(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether they were there at the last look. Asks nothing."""
        return self._until.get(_schema_of(connection)) == _FOR_GOOD

    def look_due(self, connection: BaseDatabaseWrapper) -> bool:
        return pay(connection) and self._until.get(_schema_of(connection), 0.0) <= monotonic()

    def note(self, connection: BaseDatabaseWrapper, driver: Any) -> None:
        """Note the answer to `CALLABLE`."""
        _, found = driver.fetchone()
        if found:
            self._until[_schema_of(connection)] = _FOR_GOOD
        else:
            self._do_without(connection, "they are missing, may not be executed, or have another owner than the table")

    def note_failure(self, connection: BaseDatabaseWrapper, error: DatabaseError) -> None:
        """A call has failed, although they were there."""
        self._do_without(connection, str(error).strip().partition("\n")[0])

    def _do_without(self, connection: BaseDatabaseWrapper, why: str) -> None:
        schema = _schema_of(connection)
        self._until[schema] = monotonic() + LOOKED_AGAIN_AFTER
        if schema not in self._told:
            self._told.add(schema)
            logger.warning(
                "Requests to database %r go on without the functions of django_idempotency, and take longer: %s. Run: "
                "python manage.py migrate, and give EXECUTE on the functions to the role of the server.",
                self._alias,
                why,
            )


def _schema_of(connection: BaseDatabaseWrapper) -> Any:
    return getattr(connection, "schema_name", None)
