"""The functions of this module are the steps of a protected request, in the order in which they run.

The package promises the order of the steps, so this order must not change.

# Note [How the package replaces ATOMIC_REQUESTS]
With ATOMIC_REQUESTS, Django runs the view of a URL inside `atomic(alias)`. If the package claimed a key inside this
`atomic()` block, the package would only open a savepoint. Then the package could not notice that Django's COMMIT
failed. So the package opens the transaction, and Django does not open a transaction. A protected callback has the
attribute `_non_atomic_requests`. Because of this attribute, Django opens no transaction in the database of the key
table. If a request is not protected, the package opens `atomic(alias)` in place of Django.
Django refuses `async def` views under ATOMIC_REQUESTS. For those that are protected, the package does the same: without
the transaction, a request that fails in the middle would leave a half.

# Note [Observing]
A project can set `observe=True` first, and turn the protection on later. With `observe=True`, the view runs for every
request, and the client gets the view's response unchanged. If ATOMIC_REQUESTS is True, the view runs in one
transaction, as it does without the package. In observe mode, the key is claimed in one short transaction, and completed
in another short transaction. If the claim or the completion fails, the package logs the error, and the error never
reaches the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import ValidationError
from django.db import connections, transaction
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Options, get_settings, meta_name, resolve
from ..events import harmless, report, report_outcome
from ..execution.atomic import run_atomically
from ..execution.bridge import NoBridgeAbove, in_thread
from ..execution.claiming import claim_request, reached
from ..execution.leased import run_leased
from ..execution.operation import AtomicOperation, Operation
from ..protocol.digests import Identity, identify
from ..protocol.error_text import describe
from ..protocol.key_syntax import MAX_AHEAD, InvalidKey, check_dated, check_key, is_late, parse_header
from ..protocol.outcomes import (
    Claimed,
    ClaimRequest,
    Completed,
    Conflicted,
    Finished,
    Refusal,
    Snapshot,
    Unavailable,
    Verdict,
)
from ..stores import Store, alias_of, store_for
from . import problems
from .callers import scope_of
from .fingerprints import UNREADABLE, fingerprint_of
from .problems import Problem, Refused
from .responses import accepted, restore
from .view_call import ViewCall

T = TypeVar("T")
OBSERVED_LEASE = 300.0
"""For views that are only observed: seconds after which the claim of a dead worker is treated as abandoned."""
logger = logging.getLogger("django_idempotency")
UNUSABLE = {"missing-key": "missing", "invalid-key": "invalid"}
"""The events to report for the codes of two problems. These problems end a request before the key is claimed."""


def handle(call: ViewCall) -> HttpResponseBase:
    """Return the answer to one request.

    The view runs, or a stored response is replayed, or the request is refused. The view can run with or without
    protection.
    """
    options = call.options
    if call.method not in options.methods or not get_settings().enabled:
        return pass_through(call, _caller_of(call))
    if options.observe:
        return observed(call)
    if hasattr(call.request, "_idempotency_runs"):
        # An outer decorator or mixin has already claimed the key for this request. If the same request claimed the key
        # a second time, the second claim would be a conflict.
        raise IdempotencyConfigurationError(
            f"{call.view!r} is protected twice: the request is already inside a protected view. "
            "Remove one of the decorators or the mixin."
        )

    wanted = asked(call)
    if wanted is None:
        return pass_through(call)
    if isinstance(wanted, Problem):
        return _refuse(call, wanted)

    alias = alias_of(options)
    run = run_atomically if wanted.lease is None else run_leased
    store = reached(alias)
    outcome = store if isinstance(store, Unavailable) else run(store, wanted, call)
    if not isinstance(outcome, Finished):
        _forget_session(call.request)
    if isinstance(outcome, Completed):
        return _replay(call, wanted, outcome, alias)
    report_outcome(outcome, wanted.identity, alias)
    if isinstance(outcome, Finished):
        return call.deliver(outcome.value, replayed=False)
    if isinstance(outcome, Conflicted) and options.in_progress_status == 202:
        return call.deliver(accepted(alias, wanted.identity), replayed=False)
    return _refuse(call, problems.problem_of(outcome, options))


def asked(call: ViewCall) -> ClaimRequest | Problem | None:
    """Return the `ClaimRequest` for this request.

    If the request must be refused, return a `Problem`. If the view must run without protection, return None.

    The key is read before the scope, and the scope is read before the fingerprint. So if the key is invalid, the
    request is refused before any SQL statement runs.
    """
    options, operation = call.options, call.operation_name()
    try:
        key = read_key(call.asked_with, options)
        if key is None:
            return problems.missing_key(options, call.request) if options.required else None
        scope = scope_of(call.asked_with, options, call.authenticated)
        fingerprint = fingerprint_of(call.request, options, call.asked_with, call.parsed)
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    except Refused as refused:
        if refused.problem.code == problems.CHANGING:
            _tell_developer(operation)
        return refused.problem
    wanted = claim_request(options, identify(scope=scope, operation=operation, key=key), fingerprint)
    if options.late_keys == "refuse":
        # The key contains a time, which comes from the client's clock. This clock can show a time some minutes in the
        # future. Then the package still accepts the key some minutes after the end of `ttl`. So the package must store
        # the row for some minutes longer than `ttl`. The row must not expire at the end of `ttl`, because then a retry
        # could run the view again.
        late = partial(is_late, key, options.ttl_seconds)
        wanted = replace(wanted, ttl=wanted.ttl + MAX_AHEAD, late=late)
    return wanted


def read_key(request: Any, options: Options) -> str | None:
    """Return the key that the client sent, or None if the client sent no key. This function runs no SQL statement.

    Raises:
        InvalidKey: the client sent something that is not a key.
        IdempotencyConfigurationError: the project's `key=` returned something else than a str or None.
    """
    conf = get_settings()
    key: str | None
    if options.key is None:
        field = request.META.get(meta_name(conf.header))
        key = None if field is None else parse_header(field, require_quoted=conf.require_quoted_key)
    elif (key := options.key(request)) is not None:
        if not isinstance(key, str):
            raise IdempotencyConfigurationError(f"key={options.key!r} returned {key!r}; return a str or None.")
        check_key(key)
    if key is None:
        return None
    if conf.key_validator is not None:
        try:
            valid = conf.key_validator(key)
        except ValidationError as error:
            raise InvalidKey(" ".join(error.messages)) from error
        # Django's own validators return None for a valid value, and raise an error for an invalid value.
        if valid is False:
            raise InvalidKey(_("It does not have the form that this server demands."))
    return check_dated(key) if options.late_keys == "refuse" else key


def pass_through(call: ViewCall, identity: Identity | None = None) -> HttpResponseBase:
    """Call the view without protection. The operation in `request.idempotency` has no key, but it derives keys from
    `identity`, which a protected request would have.
    """
    _attach_without_key(call, identity)
    with as_django_would(call.request):
        return call.view(*call.args, **call.kwargs)  # type: ignore[no-any-return]


async def apass_through(call: ViewCall) -> HttpResponseBase:
    """`pass_through` for an `async def` view, which stays on the event loop if it needs no transaction."""
    _attach_without_key(call)
    response: HttpResponseBase = await awaited_as_django_would(call.request, call.view, *call.args, **call.kwargs)
    return response


def _attach_without_key(call: ViewCall, identity: Identity | None = None) -> None:
    request: Any = call.request
    leased = call.options.lease is not None
    request.idempotency = Operation(None, steps_on=alias_of(call.options)) if leased else AtomicOperation(None)
    request.idempotency._derives_from = identity


def _caller_of(call: ViewCall) -> Identity | None:
    """Return the identity of a request that runs without protection. None: it has no usable key, or no caller."""
    if call.method not in call.options.methods:
        return None

    def identity() -> Identity | None:
        try:
            key = read_key(call.asked_with, call.options)
            scope = "" if key is None else scope_of(call.asked_with, call.options, call.authenticated)
        except (InvalidKey, Refused):
            return None
        return None if key is None else identify(scope=scope, operation=call.operation_name(), key=key)

    return _safely(identity)


def _replay(call: ViewCall, wanted: ClaimRequest, completed: Completed, alias: str) -> HttpResponseBase:
    snapshot = completed.snapshot
    allowed = call.options.may_replay
    if allowed is not None and not call.may_replay(allowed):
        report("replay_refused", wanted.identity, alias)
        return _refuse(call, problems.replay_refused())
    report("replayed", wanted.identity, alias, resource=completed.resource)
    if snapshot.body is None:
        response = problems.respond(call.request, problems.response_not_stored(snapshot))
    else:
        response = restore(snapshot)
    return call.deliver(response, replayed=True)


def _forget_session(request: Any) -> None:
    """Make a new session object for a duplicate request, so that Django does not save old session data.

    The first request can change the stored session after the duplicate request has loaded it.
    """
    loaded = getattr(request, "session", None)
    if isinstance(loaded, SessionBase) and loaded.session_key and not loaded.modified:
        request.session = type(loaded)(loaded.session_key)
        request.session.accessed = loaded.accessed


def _refuse(call: ViewCall, problem: Problem) -> HttpResponseBase:
    if (event := UNUSABLE.get(problem.code)) is not None:
        report(event, identify(scope="", operation=call.operation_name(), key=""), alias_of(call.options))
    return call.deliver(problems.respond(call.request, problem), replayed=False)


@lru_cache(maxsize=1024)  # each operation writes this warning only once, so clients cannot fill the log
def _tell_developer(operation: str) -> None:
    with harmless():
        logger.warning(
            "%s refused an idempotency key: the value of its Authorization scheme may change with each request, so it "
            "does not identify a caller who retries. Set request.user before the view or pass scope=callable(request).",
            operation,
        )


# --- observe mode


def observed(call: ViewCall) -> HttpResponseBase:
    """Run the view in observe mode. If a protected view would answer a request with a replay or a refusal, write a
    message to the log. See Note [Observing].
    """
    wanted = _safely(partial(asked, call))
    if not isinstance(wanted, ClaimRequest):
        _log(call, wanted)
        return pass_through(call, _caller_of(call) if isinstance(wanted, Problem) else None)
    observing = replace(wanted, wait=0, lease=OBSERVED_LEASE, policy="retry")
    store = _safely(lambda: store_for(alias_of(call.options)))
    claim = None if store is None else _in_its_own(store, partial(store.claim, observing))
    if store is None or not isinstance(claim, Claimed):
        _log(call, problems.problem_of(claim, call.options) if isinstance(claim, Refusal) else claim, wanted)
        return pass_through(call, wanted.identity)
    try:
        response = pass_through(call, wanted.identity)
    except BaseException as error:
        _in_its_own(store, partial(store.journal.fail, claim, wanted, describe(error)))
        raise
    _in_its_own(store, partial(_settle, call, store, wanted, claim, response))
    return response


def _settle(call: ViewCall, store: Store, wanted: ClaimRequest, claim: Claimed, response: Any) -> None:
    if not isinstance(response, HttpResponseBase):  # Django Ninja itself makes the response for the client
        response = call.ready(response)
    if call.options.verdict_on(response) is Verdict.KEEP:
        # In observe mode, the package must not render a response. So only the status is stored.
        snapshot = Snapshot(status_code=response.status_code, headers=(), body=None)
        store.complete(claim, snapshot, ttl=wanted.ttl)
    else:
        store.journal.fail(claim, wanted, f"The view answered {response.status_code}.")


def _in_its_own(store: Store, work: Callable[[], T]) -> T | None:
    """Run a function in a new transaction. If a transaction is open already, run the function in a savepoint of that
    transaction.

    Because of the savepoint, an exception cannot break the outer transaction.
    """
    return _safely(transaction.atomic(using=store.alias)(work))


def _safely(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except Exception as error:
        if isinstance(error, UNREADABLE) or isinstance(error.__context__, UNREADABLE):
            raise  # without this line, the view would get an empty body
        with harmless():
            logger.exception("Observing an idempotency key failed; the request goes on.")
        return None


def _log(call: ViewCall, met: object, wanted: ClaimRequest | None = None) -> None:
    if isinstance(met, Completed | Problem):
        what = "replayed" if isinstance(met, Completed) else f"refused with {met.status}: {met.title}"
        key = "" if wanted is None else f" (key {wanted.identity.reference})"
        with harmless():
            logger.warning("Observed: %s would have been %s%s.", call.operation_name(), what, key)


# --- ATOMIC_REQUESTS


class TakenOver(set[str]):
    """The attribute `_non_atomic_requests` of a protected view is an instance of this class. If the set contains the
    alias of a database, Django opens no transaction in this database.

    See Note [How the package replaces ATOMIC_REQUESTS]. The set stores the aliases that the project has excluded with
    `non_atomic_requests`. The method `__contains__` also returns True for the database of the key table. The set does
    not store the alias of this database, because a router can choose a different database for each request. Another
    reason is that the settings are not always ready when Python imports the view.
    """

    def __init__(self, opted_out: Iterable[str], layers: Callable[[], tuple[Idempotency, ...]]) -> None:
        super().__init__(opted_out)
        self.layers = layers

    def alias(self) -> str:
        return alias_of(resolve(*self.layers()))

    def __contains__(self, alias: object) -> bool:
        return super().__contains__(alias) or alias == self.alias()


def take_over(view: Any, layers: Callable[[], tuple[Idempotency, ...]]) -> None:
    """Mark a protected callback, so that Django opens no transaction in the database of the key table."""
    view._non_atomic_requests = TakenOver(getattr(view, "_non_atomic_requests", ()), layers)


def as_django_would(request: Any) -> AbstractContextManager[Any]:
    """Return a transaction like the transaction that Django would open for an unprotected view."""
    mark = getattr(_callback(request), "_non_atomic_requests", None)
    if isinstance(mark, TakenOver):
        alias = mark.alias()
        if not set.__contains__(mark, alias) and connections[alias].settings_dict["ATOMIC_REQUESTS"]:
            return transaction.atomic(using=alias)
    return nullcontext()


def _callback(request: Any) -> Any:
    # In some tests, `resolver_match` has no attribute `func`.
    return getattr(getattr(request, "resolver_match", None), "func", None)


def refuse_asynchronous(request: Any) -> None:
    """Raise an error if the `dispatch` of an asynchronous class is decorated, and Django would refuse the view."""
    callback = _callback(request)
    if iscoroutinefunction(callback) and not isinstance(as_django_would(request), nullcontext):
        raise IdempotencyConfigurationError(
            f"{callback.__qualname__} has `async def` handlers, and dispatch() only makes their coroutine: the "
            "transaction of ATOMIC_REQUESTS is over when that runs. Use IdempotencyMixin, no decorator on dispatch()."
        )


async def awaited_as_django_would(request: Any, view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await an `async def` view in the transaction of `as_django_would`.

    Django itself refuses ATOMIC_REQUESTS for such views, and our mark removes that refusal. The view runs as a
    protected one does: see `in_thread`.
    """
    transaction_ = as_django_would(request)
    if isinstance(transaction_, nullcontext):
        return await view(*args, **kwargs)

    def run(form: Callable[..., Any]) -> Any:
        with transaction_, NoBridgeAbove():
            return form(*args, **kwargs)

    return await in_thread(run, view)
