"""How do the sources of identity make up one scope?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from django.core.exceptions import PermissionDenied

from ....exceptions import IdempotencyConfigurationError
from ...conf import Options, resolve
from ...events import harmless
from ..problems import Refused, anonymous_refused
from . import access_tokens, browsers, credentials, jwts, oauth_toolkit, tokens
from .parts import NOBODY, NOTHING, HandedOn, Verified, hashed, scope_text
from .users import in_a_table, scope_of_user, user_of

ANONYMOUS = "anonymous"
BY_HEADER = "authorization"
"""The beginning of a scope that is made from the `Authorization` header."""
RESERVED = frozenset({"auth", "csrf", "session"})
"""The words with which other hashes in a scope begin. A project's credential header may also have such a name."""
logger = logging.getLogger("django_idempotency")
_asked_for: ContextVar[Options | None] = ContextVar("asked_for", default=None)


def handed_on(request: Any) -> HandedOn:
    """Return what Django, or the project's middleware, has established about the caller."""
    user = user_of(request)
    return NOBODY if user is None else HandedOn(user=user, token=getattr(request, "auth", None))


def verified(request: Any, handed: HandedOn) -> Verified:
    """Return what the sources have verified. Sources that can't know anything about this request are skipped."""
    user, token = handed.user, handed.token
    acts_for_somebody = user is not None or hasattr(request, "resource_owner")
    if token is None and not acts_for_somebody:
        return NOTHING
    known = NOTHING if user is None else Verified(account=scope_of_user(user))
    if token is not None:
        known = known.beside(access_tokens.verified(handed)).beside(jwts.verified(handed))
    elif user is not None and not in_a_table(user):
        known = known.beside(jwts.verified(handed))  # a user object without a row may contain the token
    if acts_for_somebody and not known.client and oauth_toolkit.may_know(request):
        known = known.beside(oauth_toolkit.verified(request, handed))
    if token is not None and not (known.account or known.client):
        known = known.beside(tokens.verified(handed))
    return known


def _claimed(request: Any, options: Options) -> str:
    """Return a scope with a hash of what was sent. The key table must not contain the credentials themselves.

    Raises:
        Refused: nothing identifies the caller and `anonymous` is "refuse", or the scheme of the Authorization header is
            not on the list.
    """
    # All credentials are hashed together: tenants behind one gateway may send the same Authorization header and
    # different API keys. The values are separated by a line feed, which no header value can contain.
    sent = credentials.sent_credentials(request, refuse=True)
    if not RESERVED.isdisjoint(sent):
        sent = {f"sent+{name}" if name in RESERVED else name: value for name, value in sent.items()}
    if not any(map(credentials.identifies, sent.values())):
        cookies = browsers.sent_cookies(request)
        if not cookies and options.anonymous == "refuse":
            raise Refused(anonymous_refused())
        sent |= cookies
    return hashed("+".join(sent), "\n".join(sent.values())) if sent else ANONYMOUS


def scope_of(
    request: Any, options: Options, handed_on: Callable[[Any], HandedOn] = handed_on, *, default: bool = False
) -> str:
    """Return the scope of the caller who sent this request.

    Args:
        request: the request that option callables are called with.
        options: the resolved options.
        handed_on: returns what the framework's authentication hands on.
        default: whether to ignore the project's `scope=`.

    Raises:
        IdempotencyConfigurationError: the project's `scope=` function, or the user or token, does not identify the
            caller.
        Refused: the caller cannot be told apart from others.
    """
    if options.scope is None or default:
        handed = handed_on(request)
        known = verified(request, handed)
        if not (known.account or known.client):  # without a user, unverified claims don't count
            return _claimed(request, options)
        return scope_text(known, jwts.claimed(request, handed, known))
    before = _asked_for.get()
    try:  # `reset` isn't used: an exception could strike before the token that it needs is assigned
        _asked_for.set(options)
        scope = options.scope(request)
    finally:
        _asked_for.set(before)
    if not isinstance(scope, str) or not scope:
        raise IdempotencyConfigurationError(f"scope={options.scope!r} returned {scope!r}; return a non-empty str.")
    return scope


def project_scope(request: Any, handed_on: Callable[[Any], HandedOn], *, default: bool) -> str:
    """Return the scope of a request to a protected view that does not set `scope=`.

    Inside a `scope=` function, the endpoint's `anonymous` option applies; elsewhere, the project-wide one does.

    Args:
        default: whether to ignore `IDEMPOTENCY["SCOPE"]`. Inside a `scope=` function, it is always ignored.

    Raises:
        IdempotencyConfigurationError: as `scope_of` does.
        PermissionDenied: the caller cannot be told apart from others. Inside a `scope=` function, `Refused` is raised
            instead.
    """
    options = _asked_for.get()
    try:
        return scope_of(request, options or resolve(), handed_on, default=default or options is not None)
    except Refused as refused:
        if options is not None:
            raise
        raise PermissionDenied(refused.problem.detail) from refused


def advise_of_renewal(request: Any, operation: str, options: Options) -> None:
    """Log, once for each operation, that a client with a renewed token will be a different caller.

    Called if the scope begins with `BY_HEADER`.
    """
    if options.scope is None and jwts.expires_within(request, options.ttl_seconds):
        advise(operation, jwts.RENEWAL)


@lru_cache(maxsize=1024)  # once for each operation, so that clients cannot fill the log
def advise(operation: str, advice: str) -> None:
    """Log what the project has to do about the callers of an operation."""
    with harmless():
        logger.warning(advice, operation)
