"""PostgreSQL's open transactions that hold keys: atomic mode at work, which no query of the key table can see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTransaction:
    """One open transaction that holds keys of atomic mode, most often one request.

    Attributes:
        pid: of the server process, as `pg_terminate_backend` takes it.
        application_name: as the connection gives it: which of your services, to tell its process from `pid`.
        keys: how many keys the transaction holds.
        seconds: since the transaction began. None if the database does not tell your role: it tells the role of the
            transaction, and members of `pg_read_all_stats`.
        state: "active" while the server runs a statement, "idle in transaction" while the server waits for the worker.
            None as for `seconds`.
    """

    pid: int
    application_name: str | None
    keys: int
    seconds: float | None
    state: str | None


# Note [Which advisory locks are ours]
# The number of our lock is a hash, and any application may take any number. A claim also writes the key table, and a
# transaction keeps the table's lock until its end. So a transaction counts if it holds both. A statement more per
# claim could mark our locks without doubt, and every request would pay for it.
RUNNING_SQL = (
    "SELECT held.pid, activity.application_name, held.keys, "
    "EXTRACT(EPOCH FROM clock_timestamp() - activity.xact_start), activity.state FROM ("
    "SELECT pid, count(*) FILTER (WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock') AS keys, "
    "bool_or(locktype = 'relation' AND relation = %(table)s::regclass AND mode = 'RowExclusiveLock') AS writes "
    "FROM pg_locks WHERE granted AND pid IS NOT NULL "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY pid) AS held "
    "LEFT JOIN pg_stat_activity AS activity ON activity.pid = held.pid "
    "WHERE held.writes AND held.keys > 0 ORDER BY activity.xact_start NULLS LAST, held.pid"
)
"""Parameter: table, the quoted name of the key table. See Note [Which advisory locks are ours]."""
