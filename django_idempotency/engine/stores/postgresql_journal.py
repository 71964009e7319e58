"""The journal on PostgreSQL: a step is started or ended by one statement, in one message with BEGIN and COMMIT.

# Note [A step in one statement]
The statement first changes the key's row under its fence, and then the step. A takeover locks them in the same order.
The step changes only if the key's row has changed, because the second part of the statement reads the changed row. At
the end, the statement divides by the number of changed key rows, and takes the logarithm of the number of changed
steps. If either number is 0, the statement fails: PostgreSQL undoes all of it, and does not run the COMMIT in the same
message. The error's code says whether the key's row or the step was missing. A later query could not find this out,
because the rollback also undoes the cause, such as a `SET search_path`.

These statements aren't prepared, because the function of a `write` may send DEALLOCATE ALL. Recording the end of the
write would then fail, and the write's changes would be lost.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.db import DatabaseError, connections

from ...models import IdempotencyStep
from ..protocol.outcomes import Claimed
from . import messages
from .journal import AlreadyFinished, Journal, lease_lost
from .messages import IDLE, IN_ERROR, IN_TRANSACTION
from .prepared import Statement
from .queries import Queries, values_of_claim
from .sealing import seal


class PostgreSQLJournal(Journal):
    """Where no messages can be sent, it works like the journal of any other database."""

    def _start(self, claimed: Claimed, name: str, kind: str, *, keyed: bool = False, last: bool = False) -> None:
        values = {"name": name, "kind": kind, "keyed": keyed}
        if not self._send(self._start_sql, claimed, values, last=last):
            super()._start(claimed, name, kind, keyed=keyed, last=last)

    def _end(self, claimed: Claimed, name: str, result: str | None, *, effects: int = 0, last: bool = False) -> None:
        values = {"name": name, "result": seal(claimed, "result", result, name), "effects": effects}
        if not self._send(self._end_sql, claimed, values, last=last):
            super()._end(claimed, name, result, effects=effects, last=last)

    def _send(self, statement: Statement, claimed: Claimed, values: dict[str, Any], *, last: bool) -> bool:
        """Send the statement, but only if it begins or ends its transaction. Return whether it was sent."""
        connection = connections[self.alias]
        statuses = (IDLE, IN_TRANSACTION) if last else (IDLE,)
        if connection.needs_rollback or not messages.may_send(connection, *statuses):
            return False
        try:
            messages.send(connection, statement, {**values_of_claim(claimed), **values}, last=last)
        except DatabaseError as error:
            # IN_ERROR shows that this statement failed. An error from COMMIT, perhaps raised by one of the project's
            # deferred triggers, would have ended the transaction.
            raw: Any = connection.connection
            if raw is not None and raw.info.transaction_status == IN_ERROR:
                match getattr(error.__cause__, "sqlstate", None):
                    case "22012":  # division_by_zero
                        raise lease_lost() from error
                    case "2201E":  # invalid_argument_for_logarithm
                        raise AlreadyFinished from error
            raise
        return True

    @cached_property
    def _start_sql(self) -> Statement:
        step = {
            "key": "%(id)s::bigint",
            "key_hash": "%(key_hash)s::bigint",
            "scope_hash": "%(scope_hash)s::bigint",
            "name": "%(name)s::text",
            "kind": "%(kind)s::text",
            "attempt": "%(attempt)s::integer",
            "keyed": "%(keyed)s::boolean",
            "started_at": self._sql.clock,
        }
        columns = ", ".join(self._columns[name] for name in step)
        unknown = self._sql.k["unknown"]
        return self._checked(
            f"{unknown} = {unknown} + 1",
            f"INSERT INTO {self._sql.steps} ({columns}) SELECT {', '.join(step.values())} FROM own",
        )

    @cached_property
    def _end_sql(self) -> Statement:
        sql, s = self._sql, self._columns
        unknown, effects = sql.k["unknown"], sql.k["effects"]
        return self._checked(
            # If the step is missing, the statement must fail at its logarithm. Without `greatest`, this UPDATE could
            # fail first, because of a negative count.
            f"{unknown} = greatest({unknown} - 1, 0), {effects} = {effects} + %(effects)s",
            f"UPDATE {sql.steps} SET {s['result']} = %(result)s, {s['finished_at']} = {sql.clock} FROM own "
            f"WHERE {s['key']} = %(id)s AND {s['key_hash']} = %(key_hash)s AND {s['scope_hash']} = %(scope_hash)s "
            f"AND {s['name']} = %(name)s AND {s['finished_at']} IS NULL",
        )

    def _checked(self, changes: str, step: str) -> Statement:
        sql = self._sql
        return Statement(
            "",
            f"WITH own AS (UPDATE {sql.table} SET {changes}, {sql.k['updated_at']} = {sql.clock} WHERE {sql.fence} "
            f"RETURNING 1), step AS ({step} RETURNING 1) "
            "SELECT 1 / (SELECT count(*) FROM own), ln((SELECT count(*) FROM step))",
        )

    @cached_property
    def _sql(self) -> Queries:
        return Queries(self.alias)

    @cached_property
    def _columns(self) -> dict[str, str]:
        quote = connections[self.alias].ops.quote_name
        return {field.name: quote(str(field.column)) for field in IdempotencyStep._meta.concrete_fields}
