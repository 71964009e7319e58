"""What a store has to do with its database: one connection, and the meaning of its errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from .dialect import Dialect

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

    from ..protocol.outcomes import Claimed


class Database(ABC):
    """One database alias. Threads may share the object: it keeps nothing but its SQL."""

    dialect: ClassVar[Dialect]

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.alias]

    def is_outermost(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the current `atomic()` block is the whole transaction, so that nothing of a caller is lost with it.

        Not so inside of another block, and not where the caller has switched autocommit off.
        """
        return connection.commit_on_exit and not connection.savepoint_ids

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the current transaction has lost its writes, so that it can only be rolled back."""
        return connection.get_rollback() or connection.closed_in_transaction

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        """Whether the transaction that Django takes for open is over, so that each statement commits by itself.

        claimed: the claim that the transaction began with.
        """
        return self.has_no_transaction(connection)

    @abstractmethod
    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has no open transaction, where Django has one. Asks the driver, not the server."""

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has an open transaction, where Django has none: a raw BEGIN. Asks the driver alone."""
        return False

    def may_repeat(self, error: DatabaseError) -> bool:
        """Whether this error of a claim may go away in a new transaction: a deadlock, a serialization failure."""
        return False

    def check(self) -> Iterable[CheckMessage]:
        """System checks that query the database: whether its set-up can keep the promises."""
        return ()

    def was_rolled_back(self, error: DatabaseError) -> bool:
        """Whether this error means that the database has rolled the whole transaction back in favour of another."""
        return False

    def is_busy(self, error: DatabaseError) -> bool:
        """Whether this error of a claim means only that the database did not answer in time."""
        return False

    @abstractmethod
    def is_unmigrated(self, error: DatabaseError) -> bool:
        """Whether this error of a query of ours means that a table or a column is missing."""

    def explain(self, error: DatabaseError) -> None:
        """Raise `IdempotencyConfigurationError` if this error of a query of ours means a missing migration."""
        if not self.is_unmigrated(error):
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}"
        ) from error

    def _fetch(self, sql: str, values: Any = None) -> Any:
        """The first row, or None."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})  # without values, the doubled percent signs of a clock would stay
            return cursor.fetchone()

    def _fetch_all(self, sql: str, values: Any = None) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})
            return list(cursor.fetchall())

    def _execute(self, sql: str, values: Any = None) -> int:
        """How many rows the statement has changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})
            return int(cursor.rowcount)

    def _execute_or(self, lost: Callable[[], Exception], sql: str, values: Any) -> None:
        """Change exactly one row, or raise."""
        if self._execute(sql, values) != 1:
            raise lost()
