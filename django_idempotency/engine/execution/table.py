"""The journal of leased work: steps in a table, each committed on its own under the fence of `stores/journal.py`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from django.db import Error, IntegrityError

from ...exceptions import ClaimLost, IdempotencyConfigurationError, OutcomeUnknown, TransactionBroken
from ...limits import is_limit
from ...models import IdempotencyStep
from ..events import harmless, report
from ..protocol.digests import Identity
from ..protocol.outcomes import Claimed, ClaimRequest, InDoubt, Resource
from ..stores import Store
from ..stores.journal import AlreadyFinished, NotRepeatable
from ..stores.transactions import atomically
from .bridge import without_bridge_above
from .commits import committed, reconnecting_once
from .results import encode_step
from .steps import CallInDoubt, Step, StepJournal

Kind = IdempotencyStep.Kind
logger = logging.getLogger("django_idempotency")


class Refused(OutcomeUnknown):
    """A call must not be repeated in this attempt, so the client gets the same response as for any held key."""

    def __init__(self, step: str) -> None:
        super().__init__(InDoubt(unkeyed=(step,)).choice)
        self.step = step


class TableJournal(StepJournal):
    """One attempt's steps in the table, written under the attempt's fence."""

    def __init__(self, store: Store, request: ClaimRequest, claim: Claimed) -> None:
        self._store, self._journal, self._claim = store, store.journal, claim
        self._identity, self._policy = request.identity, request.policy
        self._keys_last = request.keys_last if request.policy == "retry-keyed" else None
        self.lease = request.lease or 0
        self._since = time.monotonic()

    def steps(self) -> dict[str, Step]:
        # The workers of earlier attempts can no longer add steps.
        stored = self._journal.steps(self._claim) if self._claim.attempt > 1 else {}
        return {
            name: Step(
                name,
                kind=step.kind,
                started=step.kind != Kind.FETCH,
                finished=step.finished,
                text=step.result,
                doubt=CallInDoubt(step.started_at, step.age, step.keyed),
            )
            for name, step in stored.items()
        }

    def renew(self) -> None:
        self._journal.renew(self._claim, self.lease)
        self._since = time.monotonic()

    def refer(self, resource: Resource) -> None:
        self._journal.refer(self._claim, resource)

    # --- calls and reads

    def start_call(self, step: Step, *, keyed: bool | None) -> None:
        asked: dict[str, Any] = {"keyed": keyed, "last": True}
        if keyed is not None:
            # "hold" repeats a call only after `reconcile` has settled its earlier start.
            asked |= {"keys_last": self._keys_last, "anew": self._policy == "hold"}
        start = partial(self._journal.start_call, self._claim, step.name, again=step.started, **asked)
        try:
            committed(self._store, f"operation.call({step.name!r})", start)
        except NotRepeatable:
            raise Refused(step.name) from None

    def finish_call(self, step: Step, text: str | None) -> BaseException | None:
        what = f"the end of operation.call({step.name!r})"
        if step.finished:  # the call's value was lost, and `reconcile` has found it
            if text is not None:
                committed(self._store, what, partial(self._journal.enter_lost, self._claim, step.name, text))
            return None
        finish = partial(self._journal.finish_call, self._claim, step.name, text, last=True)
        try:
            committed(self._store, what, finish, twice=True)
        except AlreadyFinished:
            pass  # the first try was committed, but its confirmation was lost
        except BaseException as error:
            if not is_limit(error):
                raise
            with suppress(AlreadyFinished):
                committed(self._store, what, finish, twice=True)
            return error
        return None

    def note_error(self, step: Step, error: str) -> None:
        """If the database allows it, store the error that left a call in doubt. The key's timeline shows it."""
        try:
            note = partial(self._journal.note_error, self._claim, step.name, error)
            committed(self._store, f"the end of operation.call({step.name!r})", note)
        except Exception as ours:
            if is_limit(ours):
                raise
            # The work must see the call's error, not the error from storing it.

    def keep_fetched(self, step: Step, text: str) -> None:
        keep = partial(self._journal.keep_fetched, self._claim, step.name, text)
        # During a slow `fetch`, the server may have closed the idle connection. Try again on a new one.
        try:
            reconnecting_once(self._store, partial(atomically, self._store.alias, keep, savepoint=False))
        except IntegrityError:
            # Perhaps the first INSERT was committed and only its confirmation was lost.
            if self._store.connection.in_atomic_block:
                raise
            stored = self._journal.steps(self._claim).get(step.name)
            if stored is None or stored[:3] != (Kind.FETCH, True, text):
                raise

    # --- writes

    def write(self, step: Step, function: Callable[[], Any]) -> tuple[Any, str]:
        name, what = step.name, f"operation.write({step.name!r})"
        done: list[str] = []
        ended = False

        def write() -> Any:
            nonlocal ended
            self._journal.start_write(self._claim, name)
            self.writing = True
            try:
                value = without_bridge_above(function)
                done.append(encode_step(value))
            finally:
                self.writing = False
                ended = self._store.has_no_transaction(self._store.connection)
            if not ended:
                self._journal.finish_write(self._claim, name, done[0], last=True)
            return value

        try:
            step.start()
            try:
                value = committed(self._store, what, write)
            finally:
                if ended:
                    self._repair(name, what, done)
        except BaseException:
            # The exception may come from the step's function, from COMMIT (which checks deferred constraints) or from
            # an `on_commit` callback. In each case, look for the step's row: if there is one, the step's changes may
            # have been committed. The step also stays in doubt if the database can't be queried.
            with suppress(Error, ClaimLost, IdempotencyConfigurationError):
                step.started = committed(self._store, what, partial(self._journal.has, self._claim, name))
            raise
        return value, done[0]

    def _repair(self, name: str, what: str, done: list[str]) -> None:
        """After a step's function has ended the transaction, store the step's result or leave the step in doubt.

        Everything that the function did after it ended the transaction was committed statement by statement.
        """
        if name in self._journal.steps(self._claim):  # a raw COMMIT has committed the step's start
            if done:
                committed(self._store, what, partial(self._journal.finish_write, self._claim, name, done[0], last=True))
            return
        committed(self._store, what, partial(self._journal.start_write, self._claim, name))
        if done:
            raise TransactionBroken(
                f"The function of operation.write({name!r}) lost its transaction in the middle: by a raw ROLLBACK, by "
                "a constraint or trigger that says ROLLBACK, or with its connection, which the driver has replaced. "
                "What it wrote before that is lost, and what it wrote after that is committed. The step is in doubt "
                "until a person decides about it."
            )

    # --- what is wrong

    def hand_on(self, step: Step, value: Any, error: Exception) -> None:
        raise error

    def tell_long_call(self, step: Step) -> None:
        tell_long_call(self._identity, self._store.alias, step, self._since, self.lease)

    def refuse_renamed(self, name: str, unasked: tuple[str, ...]) -> None:
        tell_renamed(self._identity.operation, name, unasked)
        if self._policy != "retry":
            raise IdempotencyConfigurationError(renamed(name, unasked))


def renamed(name: str, unasked: tuple[str, ...]) -> str:
    known = ", ".join(map(repr, unasked))
    return (
        f"operation.call({name!r}) would make a new call, and an earlier attempt has finished {known}, for which this "
        "one has not asked. If the step was renamed, this would repeat its effect: give it its old name back, at least "
        f"for keys that know it (`{unasked[0]!r} in operation.results`). If it is another call, make it after that, "
        "or read operation.results before it."
    )


@lru_cache(maxsize=1024)
def tell_renamed(operation: str, name: str, unasked: tuple[str, ...]) -> None:
    with harmless():
        logger.error("%s: %s", operation, renamed(name, unasked))


def tell_long_call(identity: Identity, using: str | None, step: Step, since: float, lease: float) -> None:
    """Report a call that has outlasted its lease, but only the first such call of each operation in this process."""
    now = time.monotonic()
    if step.began and now - since > lease and _is_first(identity.operation):
        name = step.name.replace(":", ";")
        reason = (
            f"{name} took {now - step.began:.1f} seconds, and ended {now - since:.1f} seconds after the lease of "
            f"{lease:g} seconds had begun"
        )
        report("slow_call", identity, using, reason=reason)


@lru_cache(maxsize=1024)
def _firsts(operation: str) -> list[bool]:
    return [True]


def _is_first(operation: str) -> bool:
    """Whether this is the first time that this process asks about this operation."""
    firsts = _firsts(operation)
    return bool(firsts and firsts.pop())
