"""How does a view run without protection?

This happens with methods that are not protected, with requests that leave out an optional key, in observe mode, and
while the package is switched off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import BadRequest
from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ...limits import is_limit
from ..events import harmless
from ..execution.memory import standing_in
from ..execution.operation import Operation
from ..protocol.digests import Identity, identify
from ..protocol.key_syntax import InvalidKey
from .atomic_requests import as_django_would, awaited_as_django_would
from .callers import scope_of
from .fingerprints import UNREADABLE
from .problems import Refused
from .responses import refuse_stream
from .sent_key import read_key
from .view_call import ViewCall

T = TypeVar("T")
logger = logging.getLogger("django_idempotency")


def pass_through(call: ViewCall, identity: Identity | None = None) -> HttpResponseBase:
    """Call the view without protection. `request.idempotency` has no key, but `derive_key` uses `identity`."""
    return without_protection(call, call.options.runner.without_key(call.operation_name(), identity))


def without_protection(call: ViewCall, operation: Operation) -> HttpResponseBase:
    call.attach(operation)
    view = partial(call.view, *call.args, **call.kwargs)
    return standing_in(as_django_would(call.request), lambda: _told(call, view()))


async def apass_through(call: ViewCall) -> HttpResponseBase:
    """`pass_through` for an `async def` view, which stays on the event loop unless it needs a transaction."""
    call.attach(call.options.runner.without_key(call.operation_name(), None))
    return _told(call, await awaited_as_django_would(call.request, None, call.view, *call.args, **call.kwargs))


def _told(call: ViewCall, response: Any) -> HttpResponseBase:
    """Return the response. If protection would refuse it, log a warning first."""
    if getattr(response, "streaming", False) and call.method in call.options.methods:
        try:
            refuse_stream(response, call.options)
        except IdempotencyConfigurationError as error:
            with harmless():
                logger.warning("%s, if it were protected: %s", call.operation_name(), error)
    return response  # type: ignore[no-any-return]


def identity_of(call: ViewCall) -> Identity | None:
    """Return the identity that the request would have with protection, or None if it lacks a usable key or caller."""
    try:
        key = read_key(call.asked_with, call.options)
        scope = "" if key is None else scope_of(call.asked_with, call.options, call.adapter.handed_on)
    except (InvalidKey, Refused):
        return None
    return None if key is None else identify(scope=scope, operation=call.operation_name(), key=key)


def safely(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except Exception as error:
        if is_limit(error) or isinstance(error, UNREADABLE) or isinstance(error.__context__, UNREADABLE):
            raise  # otherwise the request would outlive its limit, or the view would get an empty body
        with harmless():
            if isinstance(error, BadRequest):  # any client can cause one, for example by cutting off an upload
                logger.warning("Observed: a request would have been refused with 400. %s", error)
            else:
                logger.exception("Observing an idempotency key failed; the request goes on.")
        return None
