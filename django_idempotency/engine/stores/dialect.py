"""The pieces of SQL that differ between databases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database spells the clock, the locks and the hints of the package's queries.

    clock: the database's time at the beginning of the statement: neither that of the transaction, nor the application's
        clock. An index can be searched by it.
    later: the clock plus a parameter in seconds.
    seconds_until: how many seconds are left until a time; `{}` is the column of that time.
    lock_at_once: makes a SELECT lock its row against other writers. If another transaction holds the row, the SELECT
        fails or returns nothing, and does not wait. Empty where a transaction locks the whole database.
    skip_locked: makes a cleanup pass over rows that another transaction holds.
    by_expiry: makes a cleanup find expired rows by the index on `expires_at`, where the optimizer could read, and lock,
        the whole table.
    delete_by_ids: deletes the rows of {table} whose {column} is in the JSON list %(ids)s.
    """

    clock: str
    later: str
    seconds_until: str
    delete_by_ids: str
    lock_at_once: str = ""
    skip_locked: str = ""
    by_expiry: str = ""
