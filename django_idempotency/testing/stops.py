"""Watch the steps of a request in leased mode, and stop the request at one of them as `kill -9` would.

`Stopped` is no `Exception`, so that no handler of a view or a framework takes it for an answer. From then on the
request can change no database: each statement is refused, except those that roll back. So the engine cannot fail the
key, and the key waits for its lease, as after the death of a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from inspect import isawaitable, isclass, iscoroutinefunction, isroutine
from typing import Any
from unittest.mock import patch

from django.db import connections
from django.db.models import F

from ..engine.execution.operation import Operation
from ..engine.stores import Store
from ..models import IdempotencyKey

HARMLESS = ("ROLLBACK", "RELEASE")
"""What Django sends to leave a transaction or a savepoint. The database does that itself when a process dies."""


class Stopped(BaseException):
    """The request ends here. Never leaves `assert_idempotent`."""


class Place(Enum):
    """Where in a step a request is stopped."""

    BEFORE = "before {step}"
    STARTED = "after the start of {step} was committed, before the function ran"
    RAN = "after the function of {step} ran, before the COMMIT"
    AFTER = "after {step}"


PLACES = {
    "call": (Place.BEFORE, Place.STARTED, Place.RAN, Place.AFTER),
    "fetch": (Place.BEFORE, Place.RAN, Place.AFTER),
    "write": (Place.BEFORE, Place.RAN, Place.AFTER),
    "end": (Place.BEFORE,),
}
"""The end has one place: after its COMMIT, only the answer is lost, and the retry is a replay."""


METHODS = {name: name for name in ("call", "fetch", "write")}
ASYNC_METHODS = {f"a{name}": name for name in METHODS if name != "write"}
"""`Operation`'s methods, and the kind of their step. `awrite` calls `write`."""


@dataclass(slots=True)
class Step:
    """One use of a step in one request.

    Attributes:
        kind: "call", "fetch", "write", or "end" for the commit of the response.
        ran: what identifies the function, if the function was called.
    """

    kind: str
    name: str
    ran: object = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else "the commit of the response"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in the step that a request uses as its first (0), second (1), …"""

    number: int
    place: Place


@dataclass(slots=True)
class Watch:
    """What one request does in leased mode.

    Attributes:
        boundary: where to stop the request. None: nowhere.
        stopped: whether the boundary was reached.
        steps: in the order of their use.
        derived: the names that `derive_key` was asked for.
    """

    boundary: Boundary | None = None
    stopped: bool = False
    steps: list[Step] = field(default_factory=list)
    derived: set[str] = field(default_factory=set)
    _rows: dict[tuple[str, int], Any] = field(default_factory=dict)
    # Those of the thread that sends the request. An asynchronous view uses them, and is itself in another thread.
    _connections: list[Any] = field(default_factory=lambda: list(connections.all()))

    def ran(self, kind: str) -> dict[str, object]:
        """The functions of this kind of step that were called, by the name of the step."""
        return {step.name: step.ran for step in self.steps if step.kind == kind and step.ran is not None}

    def let_leases_lapse(self) -> None:
        """Set back the leases of the keys that the request has claimed, as if their time was over."""
        for (alias, row_id), claim in self._rows.items():
            rows = IdempotencyKey.objects.using(alias).filter(key_hash=claim.key_hash, scope_hash=claim.scope_hash)
            rows = rows.filter(pk=row_id, status=IdempotencyKey.Status.IN_PROGRESS)
            rows.update(locked_until=F("created_at") - timedelta(seconds=1))

    def is_held(self) -> bool:
        """Whether the policy of a claimed key lets no retry run: a step is in doubt."""
        return any(
            IdempotencyKey.objects.using(alias)
            .filter(pk=row_id, steps__isnull=False, steps__finished_at=None)
            .exclude(policy=IdempotencyKey.Policy.RETRY)
            .exists()
            for alias, row_id in self._rows
        )

    def accept_statements(self) -> None:
        """The process lives again."""
        if self.stopped:
            for connection in self._connections:
                connection.execute_wrappers.remove(_refuse)

    # --- what the patched methods report

    def begin(self, operation: Operation, kind: str, name: str) -> Step:
        self._rows[operation._store.alias, operation._claim.id] = operation._claim
        return self._begin(Step(kind, name))

    def begin_end(self, store: Store, claim: Any) -> None:
        if (store.alias, claim.id) in self._rows:
            self._begin(Step("end", ""))

    def reach(self, step: Step, place: Place) -> None:
        """Stop the request, if this is the boundary."""
        if self.boundary is None or self.boundary.place is not place:
            return
        if self.boundary.number < len(self.steps) and self.steps[self.boundary.number] is step:
            self.stopped = True
            for connection in self._connections:
                # In front of all others, because wrappers are removed from the end.
                connection.execute_wrappers.insert(0, _refuse)
            raise Stopped(str(step))

    def _begin(self, step: Step) -> Step:
        self.steps.append(step)
        self.reach(step, Place.BEFORE)
        return step


def boundaries(steps: list[Step]) -> Iterator[tuple[Boundary, str]]:
    """Where a request with these steps can be stopped, and how a message says that."""
    for number, step in enumerate(steps):
        for place in PLACES[step.kind]:
            yield Boundary(number, place), place.value.format(step=step)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch the requests that this process handles inside the block."""
    with ExitStack() as stack:
        for methods, watching in ((METHODS, _step), (ASYNC_METHODS, _astep)):
            for name, kind in methods.items():
                replacement = watching(watch, kind, getattr(Operation, name))
                stack.enter_context(patch.object(Operation, name, replacement))
        stack.enter_context(patch.object(Operation, "derive_key", _derive_key(watch, Operation.derive_key)))
        stack.enter_context(patch.object(Store, "complete", _complete(watch, Store.complete)))
        stack.callback(watch.accept_statements)
        yield


def _step(watch: Watch, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(operation: Operation, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        step = watch.begin(operation, kind, name)
        value = original(operation, name, _reporting(watch, step, function), *args, **kwargs)
        watch.reach(step, Place.AFTER)
        return value

    return method


def _astep(watch: Watch, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    async def method(operation: Operation, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        step = watch.begin(operation, kind, name)
        value = await original(operation, name, _reporting(watch, step, function), *args, **kwargs)
        watch.reach(step, Place.AFTER)
        return value

    return method


def _reporting(watch: Watch, step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a step, which reports its run. It stays a coroutine function if it is one."""

    def start() -> None:
        watch.reach(step, Place.STARTED)
        step.ran = _identity(function)

    async def awaited(result: Awaitable[Any]) -> Any:
        value = await result
        watch.reach(step, Place.RAN)
        return value

    def run(*args: Any, **kwargs: Any) -> Any:
        start()
        result = function(*args, **kwargs)
        if isawaitable(result):
            return awaited(result)
        watch.reach(step, Place.RAN)
        return result

    async def arun(*args: Any, **kwargs: Any) -> Any:
        start()
        return await awaited(function(*args, **kwargs))

    return arun if iscoroutinefunction(function) else run


def _identity(function: Any) -> object:
    """The same for the same place in the code: each attempt makes new lambdas, partial functions and objects."""
    function = getattr(function, "func", function)
    if (code := getattr(function, "__code__", None)) is not None:
        return code
    return function if isroutine(function) or isclass(function) else type(function)


def _derive_key(watch: Watch, original: Callable[..., str]) -> Callable[..., str]:
    def method(operation: Operation, name: str) -> str:
        watch.derived.add(name)
        return original(operation, name)

    return method


def _complete(watch: Watch, original: Callable[..., None]) -> Callable[..., None]:
    def method(store: Store, claimed: Any, *args: Any, **kwargs: Any) -> None:
        watch.begin_end(store, claimed)
        original(store, claimed, *args, **kwargs)

    return method


def _refuse(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    """An execute wrapper: a dead process sends nothing more."""
    if str(sql).lstrip().upper().startswith(HARMLESS):
        return execute(sql, params, many, context)
    raise Stopped(f"refused: {sql}")
