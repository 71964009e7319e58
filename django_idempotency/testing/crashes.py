"""`crash_at_each_step`: stop a leased request at every boundary of its steps, retry it, and judge what ran twice.

The request is watched through the public methods of `Operation`, which get the functions of the steps, and through an
execute wrapper of Django on each connection. `Stopped` is no `Exception`, so that no handler of a view or a framework
takes it for an answer. From then on the wrapper refuses each statement, except those that roll back. So the engine
cannot fail the key, and the key waits for its lease, as after the death of a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import isawaitable, isclass, isroutine
from typing import Any
from unittest.mock import patch

from django.db import connections
from django.db.models import F, QuerySet

from .. import Operation
from ..engine.protocol.key_syntax import new_key
from ..models import IdempotencyKey
from .checks import EndpointChecks
from .requests import Reply, Request

STEPS = {"call": "call", "fetch": "fetch", "write": "write", "acall": "call", "afetch": "fetch"}
"""`Operation`'s methods, and the kind of their step. `awrite` calls `write`."""
HARMLESS = ("ROLLBACK", "RELEASE")
"""What Django sends to leave a transaction or a savepoint. The database does that itself when a process dies."""
COMPLETED = IdempotencyKey.Status.COMPLETED


class Stopped(BaseException):
    """The request ends here. Never leaves `assert_idempotent`."""


@dataclass(slots=True)
class Watch:
    """What one request does in leased mode. It is also the execute wrapper of the request's connections.

    Attributes:
        stop_at: the number of the place where the request is stopped. None: nowhere.
        stopped: whether it was stopped.
        places: the places where the request could be stopped, as a message names them.
        used: kind and name of each step that was used.
        ran: what identifies the function of each step that was called, by kind and name.
        derived: the names that `derive_key` was asked for.
        keys: the keys of its operations.
    """

    stop_at: int | None = None
    stopped: bool = False
    places: list[str] = field(default_factory=list)
    used: list[tuple[str, str]] = field(default_factory=list)
    ran: dict[tuple[str, str], object] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def reach(self, place: str) -> None:
        """Stop the request, if it shall be stopped here. A stopped request comes no further."""
        self.stopped = self.stopped or len(self.places) == self.stop_at
        self.places.append(place)
        if self.stopped:
            raise Stopped(place)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        statement = str(sql).lstrip()
        if self.stopped and not statement.upper().startswith(HARMLESS):
            raise Stopped(f"refused: {statement}")
        # After the COMMIT of the response only the answer is lost, and the retry is a replay.
        if self.used and _completes_a_key(statement, params):
            self.reach("before the commit of the response")
        return execute(sql, params, many, context)

    def rows(self, alias: str) -> QuerySet[IdempotencyKey]:
        """The rows of its keys."""
        return IdempotencyKey.objects.using(alias).filter(key__in=self.keys)


def _completes_a_key(statement: str, params: Any) -> bool:
    values = params.values() if isinstance(params, dict) else params or ()
    is_update = statement.upper().startswith("UPDATE") and IdempotencyKey._meta.db_table in statement
    return is_update and (f"'{COMPLETED}'" in statement or COMPLETED in values)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch the requests that this process handles inside the block."""
    original = Operation.derive_key

    def derive_key(operation: Operation, name: str) -> str:
        watch.derived.add(name)
        return original(operation, name)

    with ExitStack() as stack:
        # Those of the thread that sends the request. An asynchronous view uses them, and is itself in another thread.
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(watch))
        for name, kind in STEPS.items():
            stack.enter_context(patch.object(Operation, name, _step(watch, kind, getattr(Operation, name))))
        stack.enter_context(patch.object(Operation, "derive_key", derive_key))
        yield


def _step(watch: Watch, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `Operation` that reports its step. What follows a step ends at the place that comes next."""

    def method(operation: Operation, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if kind == "call":  # the other steps commit nothing before their function runs
                watch.reach(f"after the start of call {name!r} was committed, before the function ran")
            watch.ran[kind, name] = _identity(function)
            result = function(*args, **kwargs)
            return awaited(result) if isawaitable(result) else ended(result)

        async def awaited(result: Any) -> Any:
            return ended(await result)

        def ended(value: Any) -> Any:
            watch.reach(f"after the function of {kind} {name!r} ran, before the COMMIT")
            return value

        watch.keys.add(operation.key or "")
        watch.used.append((kind, name))
        watch.reach(f"before {kind} {name!r}")
        return original(operation, name, run, *args, **kwargs)

    return method


def _identity(function: Any) -> object:
    """The same for the same place in the code: each attempt makes new lambdas, partial functions and objects."""
    function = getattr(function, "func", function)
    if (code := getattr(function, "__code__", None)) is not None:
        return code
    return function if isroutine(function) or isclass(function) else type(function)


@dataclass(slots=True, kw_only=True)
class CrashChecks:
    """One request for each place, under a key of its own: stopped there, then retried after its lease.

    Args:
        checks: knows how requests are sent, and counts what they create.
        new_request: called for each new key.
        repeatable: the names of the calls that may be made twice without a derived key.
    """

    checks: EndpointChecks
    new_request: Callable[[], Request]
    repeatable: Collection[str]
    undisturbed: Reply = field(init=False)
    created: int = field(init=False)

    def run(self) -> None:
        """Check each place. Raises AssertionError at the first that fails."""
        __tracebackhide__ = True
        watch = Watch()
        with watched(watch):
            self.undisturbed = self.new_request().send(new_key())
        self.created = self.checks.count_new()
        if self.undisturbed.status != self.checks.first.status:
            headline = f"the first request got {self.checks.first.status}, and the same request under another key got"
            advice = (
                "If the endpoint takes the same body only once, pass a function as data: it is called for each key."
            )
            raise self.checks.failure(f"{headline} {self.undisturbed.status}.", f"Response: {self.undisturbed}", advice)
        if not watch.used:
            raise RuntimeError(
                "crash_at_each_step=True found no step to stop at. An atomic view has none: it is one transaction, so "
                "leave the argument out. The client must call the view in this process, as django.test.Client does."
            )
        for number, where in enumerate(watch.places):
            self._check(number, where)

    def _check(self, number: int, where: str) -> None:
        __tracebackhide__ = True
        request, key = self.new_request(), new_key()
        stopped, retried = Watch(number), Watch()
        self._stop(request, key, stopped, where)
        lapsed = F("created_at") - timedelta(seconds=1)  # as if its time was over
        stopped.rows(self.checks.alias).filter(status=IdempotencyKey.Status.IN_PROGRESS).update(locked_until=lapsed)
        told = f"Ran before the stop: {_named(stopped.ran)}. Ran in the retry: {{}}."
        try:
            with watched(retried):
                retry = request.send(key)
        except Exception as error:
            headline = f"stopped {where}, the retry raised {error!r}."
            raise self.checks.failure(headline, told.format(_named(retried.ran))) from error
        created = self.checks.count_new()
        if not retried.used and retry.status >= 400 and self._is_held(stopped):
            return
        evidence = [f"Undisturbed: {self.undisturbed}", f"Retry: {retry}", told.format(_named(retried.ran))]
        for headline, advice in (*self._wrong_steps(stopped, retried), *self._wrong(retry, created)):
            raise self.checks.failure(f"stopped {where}, {headline}", *evidence, advice)

    def _stop(self, request: Request, key: str, watch: Watch, where: str) -> None:
        __tracebackhide__ = True
        try:
            with watched(watch):
                reply = request.send(key)
        except Stopped:
            return
        if watch.stopped:
            advice = "Code around the step catches BaseException, or everything (a bare except). Catch Exception."
            raise self.checks.failure(f"stopped {where}, the view went on.", f"Response: {reply}", advice)
        raise self.checks.failure(
            f"a request under a new key never came to this point: {where}.",
            f"Response: {reply}",
            f"It used: {_named(watch.used) if watch.used else 'no step'}.",
            "The same request must use the same steps. If its data change what it does, pass a function as data.",
        )

    def _is_held(self, stopped: Watch) -> bool:
        """Whether the policy of a claimed key lets no retry run: a step is in doubt."""
        in_doubt = stopped.rows(self.checks.alias).filter(steps__isnull=False, steps__finished_at=None)
        return in_doubt.exclude(policy=IdempotencyKey.Policy.RETRY).exists()

    def _wrong_steps(self, stopped: Watch, retried: Watch) -> Iterator[tuple[str, str]]:
        """A call that was made twice needs a derived key, and a step the same name in each attempt.

        `reconcile` records with a function of its own.
        """
        known = {*self.repeatable, *(stopped.derived & retried.derived)}
        for (kind, name), function in stopped.ran.items():
            if kind == "call" and name not in known and retried.ran.get((kind, name)) == function:
                yield (
                    f"call {name!r} was made twice, and the other side cannot know that.",
                    f"Send operation.derive_key({name!r}) with the call, or set on_abandoned='hold'. If a second "
                    f"call does no harm, pass repeatable=[{name!r}].",
                )
        lost = {(kind, run): name for (kind, name), run in stopped.ran.items() if (kind, name) not in retried.used}
        for (kind, name), run in retried.ran.items():
            if kind != "fetch" and (kind, name) not in stopped.used and (kind, run) in lost:
                yield (
                    f"{kind} {lost[kind, run]!r} ran again under another name, {name!r}.",
                    "Give a step the same name in each attempt: no time, no random token.",
                )

    def _wrong(self, retry: Reply, created: int) -> Iterator[tuple[str, str]]:
        if (retry.status, _shape(retry.body)) != (self.undisturbed.status, _shape(self.undisturbed.body)):
            yield (
                f"the retry got {retry.status}, or another kind of response.",
                "The view must come to the same answer when its finished steps return their kept results.",
            )
        if created != self.created:
            yield (
                f"the stopped request and its retry created {created} {self.checks.name}; an undisturbed "
                f"request creates {self.created}.",
                "Write to the database inside operation.write() only: what stands outside runs again in each attempt.",
            )


def _named(steps: Collection[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} {name!r}" for kind, name in steps) or "nothing"


def _shape(body: bytes) -> Any:
    """What two responses of one view have in common although their ids differ: the names in their JSON."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return sorted(value) if isinstance(value, dict) else type(value)
