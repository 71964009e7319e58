"""`crash_at_each_step=True`: stop a leased request before and after each step, and check that its retry repeats
nothing.

Methods of `Operation` are replaced, and an execute wrapper is installed on each connection. `Stopped` ends the request;
error handlers do not catch it, because it isn't a subclass of `Exception`. From then on, only rollbacks reach the
database, so the engine cannot mark the key as failed. The key stays locked until its lease expires, as it does after a
process has died.
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
from ..models import IdempotencyKey, IdempotencyStep
from .checks import EndpointChecks
from .requests import Reply, Request

Policy = IdempotencyKey.Policy

STEPS = {"call": "call", "fetch": "fetch", "_written": "write", "acall": "call", "afetch": "fetch"}
"""The methods of `Operation`, and the kind of step that each makes. `write` and `awrite` call `_written`."""
HARMLESS = ("ROLLBACK", "RELEASE")
"""The statements with which Django rolls back. After a process has died, the database rolls back by itself."""
COMPLETED = IdempotencyKey.Status.COMPLETED


class Stopped(BaseException):
    """Ends the request. `assert_idempotent` catches it, so no test ever sees it."""


@dataclass(slots=True)
class Watch:
    """Records what one request does in leased mode. Also serves as the execute wrapper for the request's connections.

    Attributes:
        stop_at: the number of the place where the request is stopped, or None.
        stopped: whether it was stopped.
        places: the places where it could be stopped, in words that a message can use.
        used: the kind and the name of each step that the view used.
        ran: maps the kind and name of each step whose function ran to a value that identifies the function.
        derived: the names for which the view called `derive_key`.
        keys: the keys of the request's operations.
    """

    stop_at: int | None = None
    stopped: bool = False
    places: list[str] = field(default_factory=list)
    used: list[tuple[str, str]] = field(default_factory=list)
    ran: dict[tuple[str, str], object] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def reach(self, place: str) -> None:
        """Record a place. Stop the request if this place's number is `stop_at` or higher."""
        self.stopped = self.stopped or len(self.places) == self.stop_at
        self.places.append(place)
        if self.stopped:
            raise Stopped(place)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        statement = str(sql).lstrip()
        if self.stopped and not statement.upper().startswith(HARMLESS):
            raise Stopped(f"refused: {statement}")
        # This is the last place where stopping is useful: if the worker crashes after the response has been committed,
        # the retry is a replay.
        if self.used and _completes_a_key(statement, params):
            self.reach("before the commit of the response")
        return execute(sql, params, many, context)

    def rows(self, alias: str) -> QuerySet[IdempotencyKey]:
        """The rows for all keys that the request has used."""
        return IdempotencyKey.objects.using(alias).filter(key__in=self.keys)


def _completes_a_key(statement: str, params: Any) -> bool:
    values = params.values() if isinstance(params, dict) else params or ()
    is_update = statement.upper().startswith("UPDATE") and IdempotencyKey._meta.db_table in statement
    return is_update and (f"'{COMPLETED}'" in statement or COMPLETED in values)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Record this process's requests within the `with` block."""
    original = Operation.derive_key

    def derive_key(operation: Operation, name: str) -> str:
        watch.derived.add(name)
        return original(operation, name)

    with ExitStack() as stack:
        # An asynchronous view runs in another thread, but uses this thread's connections.
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(watch))
        for name, kind in STEPS.items():
            stack.enter_context(patch.object(Operation, name, _step(watch, kind, getattr(Operation, name))))
        stack.enter_context(patch.object(Operation, "derive_key", derive_key))
        yield


def _step(watch: Watch, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of `Operation`, so that it calls `watch.reach` wherever the request can be stopped."""

    def method(operation: Operation, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            # Only the start of a `call` is committed before its function runs.
            if kind == "call":
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
    """Identify a function across attempts, each of which creates new function objects."""
    function = getattr(function, "func", function)
    if (code := getattr(function, "__code__", None)) is not None:
        return code
    return function if isroutine(function) or isclass(function) else type(function)


@dataclass(slots=True, kw_only=True)
class CrashChecks:
    """Stops a request at each place where a worker could die, lets the lease expire, and checks the retry.

    Args:
        checks: counts what the requests create, and writes the failures.
        new_request: returns a request for a new key.
        repeatable: the names of the calls that are harmless when made twice without a derived key.
    """

    checks: EndpointChecks
    new_request: Callable[[], Request]
    repeatable: Collection[str]
    undisturbed: Reply = field(init=False)
    created: int = field(init=False)

    def run(self) -> None:
        """Stop a request at each place in turn, and raise AssertionError at the first retry that goes wrong."""
        __tracebackhide__ = True
        watch = Watch()
        with watched(watch):
            self.undisturbed = self.new_request().send(new_key())
        self.created = self.checks.count_new()
        if self.undisturbed.status != self.checks.first.status:
            raise self.checks.failure(
                f"the first request got {self.checks.first.status}, but the same request under another key did not.",
                f"Response: {self.undisturbed}",
                "If the endpoint takes the same body only once, pass a function as data: it is called for each key.",
            )
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
        try:
            with watched(stopped):
                reply = request.send(key)
        except Stopped:
            pass
        else:
            raise self._not_stopped(stopped, where, reply)
        lapsed = F("created_at") - timedelta(seconds=1)  # in the past, so the lease has expired
        stopped.rows(self.checks.alias).filter(status=IdempotencyKey.Status.IN_PROGRESS).update(locked_until=lapsed)
        told = f"Ran before the stop: {_named(stopped.ran)}. Ran in the retry: {{}}."
        try:
            with watched(retried):
                retry = request.send(key)
        except Exception as error:
            headline = f"stopped {where}, the retry raised {error!r}."
            raise self.checks.failure(headline, told.format(_named(retried.ran))) from error
        created = self.checks.count_new()
        rows = stopped.rows(self.checks.alias).filter(unknown__gt=0)
        own = {"key__in": rows, "key_hash": F("key__key_hash"), "scope_hash": F("key__scope_hash")}
        in_doubt = IdempotencyStep.objects.using(self.checks.alias).filter(**own, finished_at=None)
        held = in_doubt.exclude(key__policy=Policy.RETRY).exclude(key__policy=Policy.RETRY_KEYED, keyed=True).exists()
        if held and not retried.used and retry.status >= 400:
            return  # as it should be: the call in doubt must not be repeated, so its key is held
        evidence = [f"Undisturbed: {self.undisturbed}", f"Retry: {retry}", told.format(_named(retried.ran))]
        for headline, advice in self._wrong(stopped, retried, retry, created):
            raise self.checks.failure(f"stopped {where}, {headline}", *evidence, advice)

    def _not_stopped(self, watch: Watch, where: str, reply: Reply) -> AssertionError:
        headline = f"a request under a new key never came to this point: {where}."
        advice = "The same request must use the same steps. If its data changes what it does, pass a function as data."
        if watch.stopped:
            headline = f"stopped {where}, the view went on."
            advice = "Code around the step catches BaseException, or everything (a bare except). Catch Exception."
        return self.checks.failure(headline, f"Response: {reply}", f"It used: {_named(watch.used)}.", advice)

    def _wrong(self, stopped: Watch, retried: Watch, retry: Reply, created: int) -> Iterator[tuple[str, str]]:
        """Yield each defect in the retry, with advice on how to fix it.

        A call without a derived key must not be made twice, and a step must keep its name. `reconcile` may pass a
        look-up to `operation.call`, to record the result of an earlier call. This does not count as a second call.
        """
        known = {*self.repeatable, *(stopped.derived & retried.derived)}
        for (kind, name), function in stopped.ran.items():
            if kind == "call" and name not in known and retried.ran.get((kind, name)) == function:
                yield (
                    f"call {name!r} was made twice, and the called service cannot know that.",
                    f"Send operation.derive_key({name!r}) with the call, or set on_abandoned='hold'. If a second "
                    f"call is harmless, pass repeatable=[{name!r}].",
                )
        lost = {(kind, run): name for (kind, name), run in stopped.ran.items() if (kind, name) not in retried.used}
        for (kind, name), run in retried.ran.items():
            if kind != "fetch" and (kind, name) not in stopped.used and (kind, run) in lost:
                yield (
                    f"{kind} {lost[kind, run]!r} ran again under another name, {name!r}.",
                    "Give a step the same name in each attempt: no time, no random token.",
                )
        if (retry.status, _shape(retry.body)) != (self.undisturbed.status, _shape(self.undisturbed.body)):
            yield (
                f"the retry got {retry.status}, or another kind of response.",
                "The view must come to the same response when its finished steps return their stored results.",
            )
        if created != self.created:
            yield (
                f"the stopped request and its retry created {created} {self.checks.name}; an undisturbed "
                f"request creates {self.created}.",
                "Write to the database only inside operation.write(): whatever is outside runs again in each attempt.",
            )


def _named(steps: Collection[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} {name!r}" for kind, name in steps) or "nothing"


def _shape(body: bytes) -> Any:
    """The field names of a JSON response. Its values are not compared, because ids differ between responses."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return sorted(value) if isinstance(value, dict) else type(value)
