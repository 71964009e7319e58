"""The SQL of one store, made once from the models' metadata, and the row that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.outcomes import Completed, Conflicted, Mismatched
from ..protocol.snapshots import Snapshot, decode_headers

if TYPE_CHECKING:
    from ..protocol.claims import ClaimRequest
    from .base import Store

Status = IdempotencyKey.Status


@dataclass(frozen=True, slots=True)
class Row:
    """What the table holds under a claim's two hashes. `lapsed`: a lease that nobody has renewed in time."""

    id: int
    scope: str
    operation: str
    key: str
    fingerprint: bytes | None
    status: str
    attempt: int
    expired: bool
    lapsed: bool
    status_code: int | None
    headers: str | None
    body: bytes | None

    @classmethod
    def of(cls, values: Any) -> Row:
        id_, scope, operation, key, fingerprint, status, attempt, expired, lapsed, status_code, headers, body = values
        return cls(
            id=id_,
            scope=scope,
            operation=operation,
            key=key,
            fingerprint=None if fingerprint is None else bytes(fingerprint),
            status=status,
            attempt=attempt,
            expired=bool(expired),
            lapsed=bool(lapsed),
            status_code=status_code,
            headers=headers,
            body=None if body is None else bytes(body),
        )

    def judge(self, claim: ClaimRequest) -> Completed | Mismatched | Conflicted | None:
        """What a living row means for a duplicate: its status first. None: nobody works on it, it may run again."""
        identity = claim.identity
        if (self.scope, self.operation, self.key) != (identity.scope, identity.operation, identity.key):
            # 128 equal bits of SHA-256: fail closed, show nothing of the other row.
            return Mismatched()
        if self.status == Status.IN_PROGRESS and not self.lapsed:
            return Conflicted()
        if None not in (self.fingerprint, claim.fingerprint) and self.fingerprint != claim.fingerprint:
            return Mismatched()
        if self.status != Status.COMPLETED:
            return None
        if self.status_code is None:
            raise RuntimeError(f"Bug: idempotency key row {self.id} is {self.status!r} without a result.")
        return Completed(
            snapshot=Snapshot(status_code=self.status_code, headers=decode_headers(self.headers), body=self.body)
        )


class Statements:
    """Every statement that is the same on all databases but for its clock, its locks and its hints."""

    def __init__(self, store: Store) -> None:
        quote = store.connection.ops.quote_name
        self.table = table = quote(IdempotencyKey._meta.db_table)
        self.steps = steps = quote(IdempotencyStep._meta.db_table)
        self.column = k = {f.name: quote(str(f.column)) for f in IdempotencyKey._meta.concrete_fields}
        self.step = s = {f.name: quote(str(f.column)) for f in IdempotencyStep._meta.concrete_fields}
        clock, later = store.clock, store.later

        # --- conditions
        self.mine = f"{k['key_hash']} = %s AND {k['scope_hash']} = %s"
        self.fenced = f"{k['id']} = %s AND {k['attempt']} = %s AND {k['status']} = '{Status.IN_PROGRESS.value}'"
        """See Note [Fencing]. Parameters: id, attempt."""
        doubt = f"EXISTS (SELECT 1 FROM {steps} WHERE {s['key']} = {table}.{k['id']} AND {s['finished_at']} IS NULL)"
        # Keys in progress never expire, nor do keys with a call in doubt.
        expired = (
            f"{k['expires_at']} <= {{clock}} AND ({k['status']} = '{Status.COMPLETED.value}' "
            f"OR ({k['status']} = '{Status.FAILED.value}' AND NOT {doubt}))"
        )
        self.is_expired = expired.format(clock=clock)
        self.are_expired = expired.format(clock=store.clock_once or clock)
        self.lapsed = f"{k['locked_until']} <= {clock}"
        self.are_stuck = f"{k['locked_until']} <= {store.clock_once or clock}"
        self.are_live = f"{k['locked_until']} > {store.clock_once or clock}"
        # PostgreSQL takes a comparison with the clock for a third of the table: to find 2,000 of them it would read the
        # table, all of it if there are fewer. This is the order of the partial index.
        self.by_lease = f"ORDER BY {k['locked_until']}"
        self.are_in_doubt = (
            f"({k['status']} = '{Status.FAILED.value}' OR {self.are_stuck}) AND {k['id']} IN "
            f"(SELECT {s['key']} FROM {steps} WHERE {s['finished_at']} IS NULL)"
        )

        # --- claiming
        self.columns = ", ".join(
            k[name]
            for name in (
                *("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "status"),
                *("attempt", "created_at", "expires_at", "locked_until"),
            )
        )
        self.row = ", ".join(
            (
                *(k[n] for n in ("id", "scope", "operation", "key", "fingerprint", "status", "attempt")),
                *(f"({self.is_expired})", f"({self.lapsed})"),
                *(k[n] for n in ("status_code", "headers", "body")),
            )
        )
        self.look = f"SELECT {self.row} FROM {table} WHERE {self.mine}"
        begin = (
            f"{k['status']} = '{Status.IN_PROGRESS.value}', {k['attempt']} = {k['attempt']} + 1, "
            f"{k['last_error']} = NULL, {k['expires_at']} = {later}, {k['locked_until']} = {later}"
        )
        self.take_over = (
            f"UPDATE {table} {store.by_id} SET {k['fingerprint']} = %s, {k['status_code']} = NULL, "
            f"{k['headers']} = NULL, {k['body']} = NULL, {k['completed_at']} = NULL, {k['created_at']} = {clock}, "
            f"{begin} WHERE {k['id']} = %s AND {self.is_expired}"
        )
        self.lock_for_resuming = (
            f"SELECT {k['id']} FROM {table} WHERE {k['id']} = %s AND {k['attempt']} = %s AND {k['status']} = %s "
            f"AND ({k['status']} = '{Status.FAILED.value}' OR {self.lapsed}) {store.lock_or_skip}"
        )
        self.resume = f"UPDATE {table} SET {begin} WHERE {k['id']} = %s"
        self.doubts = (
            f"SELECT {s['name']} FROM {steps} WHERE {s['key']} = %s AND {s['finished_at']} IS NULL "
            f"ORDER BY {s['id']} {store.share}"
        )

        # --- the result
        completed = (
            f"UPDATE {table} SET {k['status']} = '{Status.COMPLETED.value}', {k['status_code']} = %s, "
            f"{k['headers']} = %s, {k['body']} = %s, {k['completed_at']} = {clock}, {k['locked_until']} = NULL"
        )
        self.complete = f"{completed}, {k['expires_at']} = COALESCE({later}, {k['expires_at']}) WHERE {self.fenced}"
        self.release = f"DELETE FROM {table} WHERE {self.fenced}"
        failed = (
            f"UPDATE {table} SET {k['status']} = '{Status.FAILED.value}', {k['locked_until']} = NULL, "
            f"{k['expires_at']} = {later}"
        )
        self.fail = f"{failed}, {k['last_error']} = %s WHERE {self.fenced}"

        # --- leases and steps
        self.timeliness = f"SELECT ({self.is_expired}), ({self.lapsed}) FROM {table} WHERE {k['id']} = %s"
        self.fence = f"SELECT {k['id']} FROM {table} WHERE {self.fenced} {store.lock}"
        self.touch = f"UPDATE {table} SET {k['status']} = {k['status']} WHERE {self.fenced}"
        self.renew = f"UPDATE {table} SET {k['locked_until']} = {later} WHERE {self.fenced}"
        self.read_steps = f"SELECT {s['name']}, {s['finished_at']}, {s['result']} FROM {steps} WHERE {s['key']} = %s"
        self.add_step = (
            f"INSERT INTO {steps} ({s['key']}, {s['name']}, {s['kind']}, {s['attempt']}, {s['result']}, "
            f"{s['started_at']}, {s['finished_at']}) VALUES (%s, %s, %s, %s, %s, {clock}, {{finished_at}})"
        )
        unfinished = f"WHERE {s['key']} = %s AND {s['name']} = %s AND {s['finished_at']} IS NULL"
        self.restart_step = (
            f"UPDATE {steps} SET {s['attempt']} = %s, {s['started_at']} = {clock}, {s['error']} = NULL {unfinished}"
        )
        self.finish_step = (
            f"UPDATE {steps} SET {s['result']} = %s, {s['finished_at']} = {clock}, {s['error']} = NULL {unfinished}"
        )
        self.note_error = f"UPDATE {steps} SET {s['error']} = %s {unfinished}"
        self.delete_steps = f"DELETE FROM {steps} WHERE {s['key']} = %s"
        self.delete_doubts = f"{self.delete_steps} AND {s['finished_at']} IS NULL"

        # --- a person's decisions
        self.lock_resolvable = (
            f"SELECT {k['id']} FROM {table} WHERE {k['id']} = %s AND {k['attempt']} = %s AND ({k['status']} = "
            f"'{Status.FAILED.value}' OR ({k['status']} = '{Status.IN_PROGRESS.value}' AND {self.lapsed})) {store.lock}"
        )
        self.set_failed = f"{failed} WHERE {k['id']} = %s"
        self.close = f"{completed} WHERE {k['id']} = %s"
