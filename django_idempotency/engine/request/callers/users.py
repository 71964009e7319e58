"""Is there an authenticated user?"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.db.models import Model

from ....exceptions import IdempotencyConfigurationError
from ...execution.bridge import synchronous
from .parts import place_of

DJANGO_AUSER = "django.contrib.auth.middleware"
"""The module of Django's own `auser`, which finds the same user as `request.user`."""

MISSING = object()


def user_of(request: Any) -> Any:
    """Return the user whom Django, a middleware or django-oauth-toolkit has authenticated, or None. May run queries."""
    if hasattr(request, "resource_owner"):  # set by the toolkit's `protected_resource`, whatever `request.user` says
        owner = request.resource_owner
        return owner if is_authenticated(owner) else None
    user = getattr(request, "user", None)
    if is_authenticated(user):
        return user
    auser = getattr(request, "auser", None)
    if auser is None or getattr(getattr(auser, "func", None), "__module__", "") == DJANGO_AUSER:
        return None
    # An asynchronous middleware may set only `auser`, and for an `async def` view, `login_required` uses only `auser`.
    user = synchronous(auser)()
    return user if is_authenticated(user) else None


def is_authenticated(user: Any) -> bool:
    """Return whether a user is authenticated. The user can be any object that an authenticator has returned.

    Raises:
        IdempotencyConfigurationError: the object has no `is_authenticated`.
    """
    if user is None:
        return False
    if (answer := getattr(user, "is_authenticated", MISSING)) is MISSING:
        raise IdempotencyConfigurationError(
            f"request.user is of type {user.__class__.__qualname__!r}, which has no is_authenticated and so does "
            "not tell who is calling. Pass scope=callable(request)."
        )
    return bool(answer)


def scope_of_user(user: Any) -> str:
    """Return a user's default scope, used if the `scope` option is not set. Pass it to `forget` or `forget_scope`.

    Runs no query.

    Args:
        user: for example `request.user`.

    Raises:
        IdempotencyConfigurationError: the user has no primary key, or an empty one.
    """
    primary_key = getattr(user, "pk", None)
    if primary_key is None or str(primary_key) == "":
        raise IdempotencyConfigurationError(
            f"the authenticated user {user!r} has no primary key to identify it. Pass scope=callable(request)."
        )
    # Not `type(user)`: Django wraps the user in a lazy object.
    kind = user.__class__
    place = place_of(kind, user) if issubclass(kind, Model) else f"{kind.__module__}.{kind.__qualname__}"
    return f"user:{place}:{primary_key}"


def in_a_table(user: Any) -> bool:
    """Return whether a user is a row in a table. Other users are known only to a token's issuer or another server."""
    return isinstance(user, Model)


def logged_in(request: Any, user: Any) -> bool:
    """Return whether Django's session has established this user. May run a query."""
    session = getattr(request, "session", None)
    user_id = None if session is None else session.get(SESSION_KEY)
    return user_id is not None and str(user_id) == str(user.pk)
