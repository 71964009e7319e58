"""Begins and ends transactions so that no exception, wherever it is raised, makes the connection lose later work.

# Note [An exception at any moment]
A signal handler can raise an exception between any two Python instructions: Celery's soft time limit does so, and the
process keeps running. Django's `atomic()` is not protected while a block is being entered or exited. A block that is
interrupted leaves its entries on Django's stacks, and the next block that ends mistakes them for its own. The outermost
block would then behave like an inner one, and leave its transaction open. Every later operation in this process would
become part of that transaction, and would report success although nothing was committed.

Therefore, after an exception, a `Transaction` does not use `Atomic.__exit__`. It compares the connection with a
description from before the block, and asks the driver whether a transaction is open. It rolls back, and restores
Django's stacks. If that fails, or if another exception strikes meanwhile, the `Transaction` gives the connection up: it
closes the connection or, inside the caller's `atomic()` block, makes sure that nothing in that block can be committed
any more.

There are two more reasons not to use `Atomic.__exit__`. If an exception strikes before COMMIT or ROLLBACK is sent, this
method still switches autocommit on. On SQLite, MySQL and MariaDB, this commits the changes that should have been rolled
back. psycopg refuses, and its `ProgrammingError` replaces the original exception.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from django.db import Error, connections, transaction

from ...exceptions import TransactionBroken
from .connecting import close_stuck, commit, forget_blocks, give_up, is_stuck, replace_held_lock, without_held_locks

T = TypeVar("T")


def _is_idle_on_postgresql(raw: Any) -> bool:
    status = (raw.pgconn if hasattr(raw, "pgconn") else raw.info).transaction_status  # psycopg2 has no `pgconn`
    return bool(status == 0 and raw.autocommit)  # libpq's PQTRANS_IDLE


IDLE: dict[str, Callable[[Any], bool]] = {
    "postgresql": _is_idle_on_postgresql,
    "sqlite": lambda raw: not raw.in_transaction,
    # Within a transaction, autocommit is off. If the driver has silently opened a new connection, autocommit is on
    # again.
    "mysql": lambda raw: bool(raw.open and raw.get_autocommit()),
}
"""Functions, by Django's name for the database. Each returns whether the driver has a working connection on which no
transaction is open, so that each statement is committed by itself. No function sends a query."""


class Transaction:
    """A transaction of ours. Inside the caller's transaction, or with autocommit off, it is a savepoint.

    See Note [An exception at any moment].

    Attributes:
        connection: this thread's connection.
        is_outermost: whether this is a separate transaction, not a savepoint.
        is_in_a_test: whether only a `TestCase` surrounds this transaction.
        is_alone: whether this is a separate transaction, or would be one without the `TestCase` around it.
        block: the `atomic()` block, from just before it begins until after it has ended.
        raw_before, in_block_before: the driver's connection, and whether a block of the caller's was open, before the
            transaction began.
        blocks_before, savepoints_before: how many entries Django's stacks had.
        callbacks_before: the earlier value of Django's flag for running `on_commit` callbacks, which `commit()` sets.
        idle_before: False if the driver had a transaction that Django didn't know about.
    """

    __slots__ = (
        *("block", "connection", "is_alone", "is_in_a_test", "is_outermost"),
        *("blocks_before", "callbacks_before", "idle_before", "in_block_before", "raw_before", "savepoints_before"),
    )

    def __init__(self, connection: Any) -> None:
        without_held_locks(connection)
        self.connection = connection
        self.block: Any = None
        self.raw_before = raw = connection.connection
        self.in_block_before = inside = connection.in_atomic_block
        self.blocks_before = len(blocks := connection.atomic_blocks)
        self.savepoints_before = len(connection.savepoint_ids)
        self.callbacks_before = connection.run_commit_hooks_on_set_autocommit_on
        self.idle_before = raw is None or inside or IDLE[connection.vendor](raw)
        # Before Django is connected, only the settings say whether autocommit is on.
        autocommit = connection.settings_dict["AUTOCOMMIT"] if raw is None else connection.autocommit
        self.is_outermost = autocommit and not inside
        self.is_in_a_test = bool(blocks and blocks[-1]._from_testcase)
        self.is_alone = self.is_outermost or self.is_in_a_test

    def refuse_if_torn(self) -> None:
        """Raise `TransactionBroken` if the work caught an exception that had interrupted an inner block.

        Django would then take the end of this transaction for the end of that block.
        """
        blocks, savepoints = self.connection.atomic_blocks, self.savepoints_before + (not self.is_outermost)
        if (
            len(blocks) == self.blocks_before + 1
            and blocks[-1] is self.block
            and len(self.connection.savepoint_ids) == savepoints
        ):
            return
        raise TransactionBroken(
            "The work caught an exception, such as a soft time limit, that had interrupted one of its atomic() blocks "
            "while it began or ended. Django no longer knows which savepoints are open, so everything is rolled back. "
            "Let that exception propagate."
        )

    def guard(self, work: Callable[[], T]) -> T:
        """Do the work, and roll back if an exception ends it."""
        # This isn't a context manager, because an exception at the first instruction of its `__exit__` would bypass it.
        try:
            try:
                return work()
            except BaseException:
                self.roll_back()
                raise
        except BaseException:
            # Usually, there is nothing left to do, but another exception may have interrupted `roll_back`.
            self.give_up()
            raise

    def begin(self, **how: bool) -> None:
        self.block = transaction.atomic(using=self.connection.alias, **how)
        self.block.__enter__()

    def end(self) -> None:
        """Commit, or release the savepoint. If Django has noted that a rollback is needed, roll back instead.

        Call `refuse_if_torn` whenever the project's code has run.
        """
        connection = self.connection
        if connection.needs_rollback:
            self.roll_back()
        elif self.is_outermost:
            forget_blocks(connection)
            commit(connection)
            connection.set_autocommit(True)
        else:
            self.block.__exit__(None, None, None)
        self.block = None

    def roll_back(self) -> None:
        """Undo what this transaction did, and restore the state that the connection had before.

        If the transaction has ended, only Django's records of it are removed. If the earlier state can't be restored,
        the connection is given up.
        """
        connection = self.connection
        replace_held_lock(connection)
        if not self._is_over():
            if self.is_outermost:
                self._roll_back_all()
            else:
                self._roll_back_savepoint()
        if self.is_outermost:
            # If the transaction was committed, its remaining callbacks are lost, as they are when a callback raises an
            # exception. They must not run when another transaction is committed.
            connection.run_on_commit = []
            connection.run_commit_hooks_on_set_autocommit_on = self.callbacks_before
        self.block = None

    def give_up(self) -> None:
        """Unless the transaction has ended, make sure that no later work on the connection can be lost."""
        if self._is_over():
            return
        if self.is_outermost:
            give_up(self.connection)
        else:
            self._doom()

    def _is_over(self) -> bool:
        """Whether the connection is back in the state that it had before this transaction."""
        connection = self.connection
        if not self.is_outermost:
            return (
                self.block is None
                and connection.in_atomic_block == self.in_block_before
                and len(connection.atomic_blocks) == self.blocks_before
                and len(connection.savepoint_ids) == self.savepoints_before
            )
        if connection.in_atomic_block or connection.atomic_blocks or connection.savepoint_ids:
            return False
        raw = connection.connection
        if raw is None:
            return True
        # If the caller has sent a raw BEGIN, ours fails, and the caller's transaction stays open.
        idle = IDLE[connection.vendor](raw) or not self.idle_before
        return bool(connection.autocommit and not connection.needs_rollback and idle)

    def _roll_back_all(self) -> None:
        connection = self.connection
        if connection.connection is None or connection.closed_in_transaction or is_stuck(connection):
            give_up(connection)
            return
        forget_blocks(connection)
        try:
            connection.rollback()
            connection.set_autocommit(True)
        except Error:
            give_up(connection)

    def _roll_back_savepoint(self) -> None:
        connection = self.connection
        blocks, savepoints = connection.atomic_blocks, connection.savepoint_ids
        own = savepoints[self.savepoints_before :]  # when a block begins, Django adds a savepoint or None
        savepoint = own[0] if own and self.block is not None else None
        del blocks[self.blocks_before :], savepoints[self.savepoints_before :]
        lost = connection.connection is not self.raw_before or connection.closed_in_transaction or is_stuck(connection)
        if not (own or lost) and self.is_in_a_test:
            return  # the block has not begun; the test must be able to go on, and rolls back anyway
        if savepoint is None or lost:
            self._doom()
            return
        connection.needs_rollback = False
        try:
            connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)
        except Error:
            self._doom()
        else:
            connection.in_atomic_block = self.in_block_before

    def _doom(self) -> None:
        """Make sure that the caller can't commit its transaction, which may contain half of this one."""
        connection = self.connection
        replace_held_lock(connection)
        del connection.atomic_blocks[self.blocks_before :], connection.savepoint_ids[self.savepoints_before :]
        connection.in_atomic_block = self.in_block_before
        connection.needs_rollback = True
        if is_stuck(connection):
            close_stuck(connection)
        elif not self.in_block_before:  # autocommit is off, and the caller has no block that will roll back
            try:
                connection.rollback()
            except Error:
                with suppress(Error):  # MySQL's drivers can't close a connection that the work has closed itself
                    connection.close()
            connection.needs_rollback = True
        self.block = None


def atomically(alias: str | None, work: Callable[[], T], **how: bool) -> T:
    """Do the work inside an `atomic()` block. No exception, wherever it is raised, leaves a transaction open.

    See Note [An exception at any moment].

    Args:
        alias: None does the work without a transaction.
        how: the arguments of `atomic()`.
    """
    if alias is None:
        return work()
    own = Transaction(connections[alias])
    if how.get("durable") and own.blocks_before and not own.is_in_a_test:
        # Django would notice this only while it enters the block.
        raise RuntimeError("A durable atomic block cannot be nested within another atomic block.")

    def run() -> T:
        own.begin(**how)
        result = work()
        own.refuse_if_torn()
        own.end()
        return result

    return own.guard(run)
