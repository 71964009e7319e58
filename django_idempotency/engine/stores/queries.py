"""This module has the SQL statements that find a key, claim a key, complete a claim, or release a claim.

Each store builds its SQL statements only once. Each store has its own INSERT. The other statements are the same for
each kind of database, except for the SQL that computes times. Rare actions, such as a takeover, use Django's ORM. All
parameters of the statements have names. The functions `values_of` and `values_of_claim` return dicts of parameters.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Any

from django.db import connections

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.stored_key import Status, StoredKey
from .sealing import unseal_response
from .states import CLOCKS, EXPIRED, LAPSED, UNLEASED, as_sql

if TYPE_CHECKING:
    from ..protocol.outcomes import Claimed, ClaimRequest

Values = dict[str, Any]
SECONDS_SINCE_1970 = {
    "postgresql": "EXTRACT(EPOCH FROM statement_timestamp())",
    "mysql": "UNIX_TIMESTAMP()",
    "sqlite": "strftime('%%s', 'now')",
}
"""SQL for the present time of each kind of database. Without fractions is exact enough for the age of a key."""
SECONDS_UNTIL = {
    "postgresql": "EXTRACT(EPOCH FROM {} - statement_timestamp())",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {}) / 1000000",
    # SQLite stores a time with a precision of milliseconds. So the SQL function `round` keeps only three digits after
    # the point. More digits would be wrong, because a float is not exact.
    "sqlite": "round((julianday({}) - julianday('now')) * 86400, 3)",
}
"""SQL for each kind of database that computes how many seconds are left until the time in a column."""
COLUMNS = (
    *("id", "scope", "operation", "key", "fingerprint", "status", "attempt"),
    *("expired", "lapsed", "unleased", "lease_left"),
    *("status_code", "headers", "resource_type", "resource_id", "body"),
)
"""The columns of a query that reads a row. The body is last, because the body is not JSON."""


BYTES, TRUTHS = ("fingerprint", "body"), ("expired", "lapsed", "unleased")
"""Columns whose values must be converted, because the drivers return different types for these columns."""


class Queries:
    """This class builds the SQL that claims a key, completes a claim or releases a claim.

    The attribute `k` is a dict with the quoted name of each column of the key table.
    """

    def __init__(self, alias: str) -> None:
        connection = connections[alias]
        quote = connection.ops.quote_name
        self.clock, self._later = CLOCKS[connection.vendor]
        self._seconds_until = SECONDS_UNTIL[connection.vendor]
        self.seconds_since_1970 = SECONDS_SINCE_1970[connection.vendor]
        self.table, self.steps = quote(IdempotencyKey._meta.db_table), quote(IdempotencyStep._meta.db_table)
        self.step_key = quote(str(IdempotencyStep._meta.get_field("key").column))
        self.k = {field.name: quote(str(field.column)) for field in IdempotencyKey._meta.concrete_fields}
        self.expired, self.lapsed, self.unleased = (
            f"({as_sql(which, alias)})" for which in (EXPIRED.condition, LAPSED, UNLEASED)
        )
        self.same_hashes = f"{self.k['key_hash']} = %(key_hash)s AND {self.k['scope_hash']} = %(scope_hash)s"

    def later(self, seconds: str) -> str:
        """Return SQL that adds a number of seconds to the database's time. The text in `seconds` is the name of the SQL
        parameter that contains the number of seconds.
        """
        return self._later.replace("%s", f"%({seconds})s")

    @property
    def new_row(self) -> dict[str, str]:
        """Return a dict for the INSERT of a new row. Each item has the quoted name of a column, and the SQL for the
        value of the column.
        """
        given = ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker")
        values = {
            **{name: f"%({name})s" for name in given},
            "status": f"'{Status.IN_PROGRESS.value}'",
            "attempt": "1",
            "unknown": "0",
            "effects": "0",
            "created_at": self.clock,
            "updated_at": self.clock,
            "expires_at": self.later("ttl"),
            "locked_until": self.later("lease"),
        }
        return {self.k[name]: value for name, value in values.items()}

    def insert(self, **instead: str) -> str:
        """Return an INSERT … VALUES statement for a new row.

        A keyword argument replaces the usual SQL of one column. The name of the argument is the name of the column, and
        the value of the argument is the new SQL.
        """
        row = {**self.new_row, **{self.k[name]: value for name, value in instead.items()}}
        return f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"

    @cached_property
    def insert_if_new(self) -> str:
        """Return an INSERT that does nothing if the key is stored already."""
        return f"{self.insert()} ON CONFLICT ({self.k['key_hash']}, {self.k['scope_hash']}) DO NOTHING"

    def stored_key(self, expired: str) -> dict[str, str]:
        """Return a dict with the SQL for each column in `COLUMNS`. The argument `expired` is an SQL condition that is
        true if the row has expired.
        """
        judged = {
            "expired": expired,
            "lapsed": self.lapsed,
            "unleased": self.unleased,
            "lease_left": self._seconds_until.format(self.k["locked_until"]),
        }
        return {name: judged.get(name) or self.k[name] for name in COLUMNS}

    @cached_property
    def look(self) -> str:
        """Return a query that finds the row of a key by its hashes. The query does not lock the row."""
        return f"SELECT {', '.join(self.stored_key(self.expired).values())} FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def seen(self) -> str:
        """Return a query that returns one row if the key is stored already, and no row if the key is new."""
        return f"SELECT 1 FROM {self.table} WHERE {self.same_hashes}"

    @property
    def fence(self) -> str:
        """Return an SQL condition that is true if the claimed row still belongs to this attempt. See Note [Fencing].

        The condition also compares the hashes of the key, because another tenant can have a row with the same id.
        """
        k = self.k
        return (
            f"{self.same_hashes} AND {k['id']} = %(id)s AND {k['attempt']} = %(attempt)s "
            f"AND {k['status']} = '{Status.IN_PROGRESS.value}'"
        )

    @cached_property
    def complete(self) -> str:
        """Return an UPDATE that completes the claim of this request.

        If the parameter `resource_type` or `resource_id` is NULL, the column with the same name does not change.
        """
        k = self.k
        response = {name: f"%({name})s" for name in ("status_code", "headers", "body")}
        resource = {name: f"COALESCE(%({name})s, {k[name]})" for name in ("resource_type", "resource_id")}
        values = {
            "status": f"'{Status.COMPLETED.value}'",
            **response,
            **resource,
            "completed_at": self.clock,
            "updated_at": self.clock,
            "locked_until": "NULL",
        }
        changes = ", ".join(f"{k[name]} = {value}" for name, value in values.items())
        return f"UPDATE {self.table} SET {changes} WHERE {self.fence}"

    @cached_property
    def complete_and_keep(self) -> str:
        """Return an UPDATE that completes the claim, and that also sets the time at which the stored response expires.

        One UPDATE could do the work of both `complete` and `complete_and_keep`, but this UPDATE would need a time
        function inside COALESCE. Citus does not allow a time function inside COALESCE.
        """
        return self.complete.replace(" SET ", f" SET {self.k['expires_at']} = {self.later('ttl')}, ", 1)

    @cached_property
    def complete_settled(self) -> str:
        """Like `complete_and_keep`, but only while each call and write of the key has a result."""
        return f"{self.complete_and_keep} AND {self.k['unknown']} = 0"

    @cached_property
    def release(self) -> str:
        """Return a DELETE for the row that this request has claimed."""
        return f"DELETE FROM {self.table} WHERE {self.fence}"


def as_stored_key(values: Any) -> StoredKey:
    """Convert a row into a `StoredKey`. The row was read with the SQL of `Queries.stored_key`."""
    row = dict(zip(COLUMNS, values, strict=True))
    if not isinstance(row["status"], str):
        # To compare the row with the request, the package needs texts of the type `str`.
        raise IdempotencyConfigurationError(
            f"the database returns text as {row['status']!r}, not as text. Set client_encoding to UTF8 on this "
            "connection."
        )
    for name in BYTES:
        if (value := row[name]) is not None:
            # A database driver returns this value as bytes or as a memoryview. If the row was read as JSON, this value
            # is a text of hexadecimal digits.
            row[name] = bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    for name in TRUTHS:
        row[name] = bool(row[name])
    row["status"] = Status(row["status"])
    row["lease_left"] = float(row["lease_left"] or 0)
    type_, id_ = row.pop("resource_type"), row.pop("resource_id")
    return StoredKey(**row, resource=None if id_ is None else (type_, id_), response=unseal_response)


def values_of(wanted: ClaimRequest) -> Values:
    """Return the SQL parameters of a claim, as a dict of names and values."""
    identity = wanted.identity
    return {
        "key_hash": identity.key_hash,
        "scope_hash": identity.scope_hash,
        "scope": identity.scope,
        "operation": identity.operation,
        "key": identity.key,
        "fingerprint": wanted.fingerprint,
        "policy": wanted.policy,
        "ttl": wanted.ttl,
        "lease": wanted.lease,
        "worker": _worker(os.getpid()),
    }


def values_of_claim(claimed: Claimed) -> Values:
    """Return the SQL parameters of the condition `Queries.fence`. This condition finds the claimed row."""
    return {
        "key_hash": claimed.key_hash,
        "scope_hash": claimed.scope_hash,
        "id": claimed.id,
        "attempt": claimed.attempt,
    }


@cache
def _worker(pid: int) -> str:
    """Return the name of this worker, which contains the host name and the process id.

    The result of this function is cached. A forked process has a different process id, and must not get the cached name
    of its parent process. So the process id is an argument of this function.
    """
    return f"{gethostname()[:80]}:{pid}"
