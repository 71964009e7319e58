"""Who is calling: the scope, which separates one caller's keys and responses from those of all others."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from django.conf import settings as django_settings

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, get_settings

STABLE_SCHEMES = frozenset({"basic", "bearer", "token", "api-key"})
"""Authorization schemes whose credential is the same in a retry. Digest, AWS4 and Signature are new each time."""
SIGNED_COOKIES = "django.contrib.sessions.backends.signed_cookies"
"""The session engine whose cookie holds the session's data, and so changes with the data."""
ANONYMOUS = "anonymous"


def scope_of(request: Any, options: Idempotency) -> str | None:
    """The caller's scope, or None for a caller who must be refused (`anonymous="refuse"`).

    May run the project's own queries for `request.user`.

    Raises:
        IdempotencyConfigurationError: the project's `scope=`, or its user, does not identify the caller.
    """
    if options.scope is not None:
        scope = options.scope(request)
        if not isinstance(scope, str) or not scope:
            raise IdempotencyConfigurationError(f"scope={options.scope!r} returned {scope!r}; return a non-empty str.")
        return scope
    user = getattr(request, "user", None)
    if is_authenticated(user):
        return account_scope(user)
    if (credential := _credential(request)) is not None:
        return credential
    return ANONYMOUS if options.anonymous == "shared" else None


def is_authenticated(user: Any) -> bool:
    """Is this user authenticated? Authenticators may return any object.

    Raises:
        IdempotencyConfigurationError: the object has no `is_authenticated`.
    """
    if user is None:
        return False
    if not hasattr(user, "is_authenticated"):
        raise IdempotencyConfigurationError(
            f"request.user is of type {user.__class__.__qualname__!r}, which has no is_authenticated and so does "
            "not tell who is calling. Pass scope=callable(request)."
        )
    return bool(user.is_authenticated)


def auth_scope(auth: Any) -> str:
    """The scope of `request.auth`, as a framework's authenticator set it: a token, a user, another model.

    Raises:
        IdempotencyConfigurationError: the object does not identify the caller. All callers would share one scope.
    """
    if isinstance(auth, str) and auth:
        return credential_scope("auth", auth)
    if getattr(auth, "pk", None) is None:
        raise IdempotencyConfigurationError(
            f"request.auth is of type {type(auth).__qualname__!r}, which does not tell who is calling. Return a "
            "user, a model instance or the token from the authenticator, or pass scope=callable(request)."
        )
    return account_scope(auth)


def account_scope(user: Any) -> str:
    """The scope of an authenticated user.

    Raises:
        IdempotencyConfigurationError: the user has no primary key.
    """
    primary_key = getattr(user, "pk", None)
    if primary_key is None:
        raise IdempotencyConfigurationError(
            f"the authenticated user {user!r} has no primary key to identify it. Pass scope=callable(request)."
        )
    meta = getattr(user, "_meta", None)
    # A proxy model is another view of the same account.
    label = meta.concrete_model._meta.label if meta else f"{type(user).__module__}.{type(user).__qualname__}"
    return f"user:{label}:{primary_key}"


def _credential(request: Any) -> str | None:
    """A hash of the credentials that the client sent, so that the table holds no credential."""
    # All of them: tenants behind one gateway may send the same Authorization and different API keys.
    if sent := dict(_credentials(request)):
        return credential_scope("+".join(sent), "\n".join(sent.values()))  # no header holds a line feed
    # The cookie as it was sent, not request.session's key. A retry sends the old cookie, even if the lost response
    # had set a new one.
    session = request.COOKIES.get(django_settings.SESSION_COOKIE_NAME)
    if session and django_settings.SESSION_ENGINE != SIGNED_COOKIES:
        return credential_scope("session", session)
    return None


def _credentials(request: Any) -> Iterator[tuple[str, str]]:
    """Name and value of each credential header that stays the same in a retry."""
    for header in get_settings().credential_headers:
        value = request.META.get("HTTP_" + header.upper().replace("-", "_"), "").strip()
        if value and header.lower() == "authorization":
            scheme, _, rest = value.partition(" ")
            if scheme.lower() not in STABLE_SCHEMES or not rest.strip():
                continue
            value = f"{scheme.lower()} {rest.strip()}"
        if value:
            yield header.lower(), value


def credential_scope(kind: str, value: str) -> str:
    """The scope of all callers that know this secret."""
    return f"{kind}:{sha256(value.encode(errors='surrogatepass')).hexdigest()}"
