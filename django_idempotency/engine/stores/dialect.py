"""The pieces of SQL that differ between databases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database spells the clock, the locks and the hints of the package's queries.

    clock: the database's time now. Neither the start of the transaction nor the application's clock.
    clock_once: the same, read once per statement, for a condition that bounds an index scan.
    later: the clock plus a parameter in seconds.
    seconds_until: how many seconds are left until a time; `{}` is the column of that time.
    lock: makes a SELECT lock its row against other writers. Empty where a transaction locks the whole database.
    lock_or_skip: like `lock`, but returns no row that another transaction holds, where the database does that safely.
    skip_locked: makes a cleanup pass over rows that another transaction holds.
    share: makes a SELECT read what is committed now, where a plain SELECT shows an older snapshot.
    no_lease: a time long ago. It marks a claim that was committed without a lease, and puts the row into the index of
        leases. See `Store.note_unleased`.
    by_id: makes an UPDATE find its row by id, where the optimizer could choose, and lock, more than that row.
    by_expiry: makes a cleanup find expired rows by the index on `expires_at`, for the same reason.
    """

    clock: str
    later: str
    seconds_until: str
    clock_once: str
    no_lease: str = "'1970-01-01 00:00:00'"
    lock: str = ""
    lock_or_skip: str = ""
    skip_locked: str = ""
    share: str = ""
    by_id: str = ""
    by_expiry: str = ""
