"""What a store has to do with its database: one connection, and the meaning of its errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router
from django.db.backends.utils import CursorWrapper

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from .dialect import Dialect

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

    from ..protocol.outcomes import Claimed


class Database(ABC):
    """One database alias. Threads may share the object: it keeps nothing but its SQL."""

    vendor: ClassVar[str]
    """As Django's connection names the database."""
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
        return connection.get_rollback() or connection.closed_in_transaction or self._is_aborted(connection)

    def _is_aborted(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the database itself refuses to go on with the open transaction, although Django does not know."""
        return False

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        """Whether the transaction that Django takes for open is over, so that each statement commits by itself.

        claimed: the claim that the transaction began with.
        """
        return self.has_no_transaction(connection)

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has no open transaction, where Django has one. Asks the driver, not the server."""
        return False

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has an open transaction, where Django has none: a raw BEGIN. Asks the driver alone."""
        return False

    @abstractmethod
    def may_repeat(self, error: DatabaseError) -> bool:
        """Whether this error of a claim may go away in a new transaction: a deadlock, a serialization failure."""

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

    def _cursor(self) -> CursorWrapper:
        return self.connection.cursor()

    def _quote(self, name: str) -> str:
        return self.connection.ops.quote_name(name)

    def _fetch(self, sql: str, params: list[Any]) -> Any:
        """The first row, or None."""
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchone()

    def _fetch_all(self, sql: str, params: list[Any]) -> list[Any]:
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    def _execute(self, sql: str, params: list[Any]) -> int:
        """How many rows the statement has changed."""
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            return int(cursor.rowcount)

    def _execute_or(self, lost: Callable[[], Exception], sql: str, params: list[Any]) -> None:
        """Change exactly one row, or raise."""
        if self._execute(sql, params) != 1:
            raise lost()

    def _end_with(self, lost: Callable[[], Exception], sql: str, params: list[Any]) -> None:
        """The same with the last statement of the caller's `atomic()`: the COMMIT may travel with it."""
        self._execute_or(lost, sql, params)
