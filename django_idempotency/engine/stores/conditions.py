"""The tables, their columns, and the conditions on a row, as SQL for the claim. The states of a key are in `states`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.decision import Status
from .dialect import Dialect
from .states import EXPIRED, as_sql


class Conditions:
    """Conditions in one database's dialect. `k` and `s` are the columns of the keys and of the steps, quoted."""

    def __init__(self, dialect: Dialect, quote: Callable[[str], str], alias: str) -> None:
        self.dialect, self.alias = dialect, alias
        self.table = quote(IdempotencyKey._meta.db_table)
        self.steps = quote(IdempotencyStep._meta.db_table)
        self.k = {field.name: quote(str(field.column)) for field in IdempotencyKey._meta.concrete_fields}
        self.s = {field.name: quote(str(field.column)) for field in IdempotencyStep._meta.concrete_fields}

    def status_is(self, status: Status) -> str:
        return f"{self.k['status']} = '{status.value}'"

    @cached_property
    def same_hashes(self) -> str:
        """The row of an identity, by the unique index. Parameters: key_hash, scope_hash."""
        return f"{self.k['key_hash']} = %s AND {self.k['scope_hash']} = %s"

    @cached_property
    def same_row(self) -> str:
        """One row. Parameters: those of `Row.found_by`. An id alone could be another tenant's, in another schema."""
        return f"{self.same_hashes} AND {self.k['id']} = %s"

    @cached_property
    def fence(self) -> str:
        """The claimed row still belongs to this attempt. Parameters: those of `Claimed.fence`. See Note [Fencing]."""
        return f"{self.same_attempt} AND {self.status_is(Status.IN_PROGRESS)}"

    @cached_property
    def same_attempt(self) -> str:
        """The row is at the attempt at which the caller has seen it. Parameters: as for `same_row`, attempt."""
        return f"{self.same_row} AND {self.k['attempt']} = %s"

    @cached_property
    def lapsed(self) -> str:
        """The row has a lease, and the lease is over."""
        return f"{self.k['locked_until']} <= {self.dialect.clock}"

    @cached_property
    def lease_left(self) -> str:
        """The seconds until the lease is over. NULL: the row has no lease."""
        return self.dialect.seconds_until.format(self.k["locked_until"])

    @cached_property
    def unleased(self) -> str:
        """The row is in progress without a lease. See Note [A committed claim without a lease]."""
        return f"{self.status_is(Status.IN_PROGRESS)} AND {self.k['locked_until']} IS NULL"

    @cached_property
    def expired(self) -> str:
        """The row counts as if its key had never been seen."""
        return as_sql(EXPIRED.condition, self.alias)

    @cached_property
    def set_completed(self) -> str:
        """The beginning of an UPDATE that completes a row. Parameters: status code, headers, body."""
        k = self.k
        return (
            f"UPDATE {self.table} SET {self.status_is(Status.COMPLETED)}, {k['status_code']} = %s, "
            f"{k['headers']} = %s, {k['body']} = %s, {k['completed_at']} = {self.dialect.clock}, "
            f"{k['updated_at']} = {self.dialect.clock}, {k['locked_until']} = NULL"
        )

    @cached_property
    def set_resource(self) -> str:
        """The part of an UPDATE that keeps what the operation is about. Parameters: type, id."""
        return f"{self.k['resource_type']} = %s, {self.k['resource_id']} = %s"
