"""Finds out who is calling. The scope separates the keys and responses of one caller from those of all others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from typing import Any
from urllib.parse import quote

from django.conf import settings as django_settings
from django.contrib.sessions.backends import signed_cookies
from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import Model

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, get_settings, meta_name
from .problems import Refused, anonymous_refused, credential_refused

SCHEMES = frozenset(
    {
        *("access-token", "api-key", "api-token", "apikey", "apitoken", "basic", "bearer", "jwt", "key"),
        *("private-token", "ssws", "token", "x-api-key"),
    }
)
"""Authorization schemes, in lower case, whose value is the same in a request and in its retry. With other schemes, such
as Digest, DPoP and HMAC signatures, a retry has a new value, so the retry would look like another caller."""
ANONYMOUS = "anonymous"
OAUTH_BACKEND = "oauth2_provider.backends.OAuth2Backend"
ACCESS_TOKEN = ("oauth2_provider.models", "AbstractAccessToken")


def scope_of(request: Any, options: Idempotency, authenticated: Callable[[], str | None] | None = None) -> str:
    """The caller's scope.

    Reading `request.user` can run queries of the project.

    Args:
        request: the request that option callables get.
        options: the resolved options.
        authenticated: returns the scope of the caller whom the framework's own authentication has found, or None.

    Raises:
        IdempotencyConfigurationError: the project's `scope=`, or the project's user object, does not identify the
            caller.
        Refused: the caller cannot be told apart.
    """
    if options.scope is not None:
        scope = options.scope(request)
        if not isinstance(scope, str) or not scope:
            raise IdempotencyConfigurationError(f"scope={options.scope!r} returned {scope!r}; return a non-empty str.")
        return scope
    if authenticated is not None and (found := authenticated()) is not None:
        return found
    user = getattr(request, "user", None)
    if user is not None and is_authenticated(user):
        client = _client(request, user)
        return scope_of_user(user) if client is None else acting_for(scope_of_user(user)) + client
    if (credential := _credential(request)) is not None:
        return credential
    if options.anonymous == "refuse":
        raise Refused(anonymous_refused())
    return ANONYMOUS


def is_authenticated(user: Any) -> bool:
    """Whether this user is authenticated. The user can be any object, because authenticators can return any object.

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


def auth_scope(auth: Any, authenticator: str = "") -> str:
    """The scope of `request.auth`. A framework's authenticator has set `request.auth` to a token, a user or a row.

    Args:
        authenticator: the name of the authenticator, if another authenticator can set an equal text for another caller.

    Raises:
        IdempotencyConfigurationError: the object does not identify the caller, so all callers would share one scope.
    """
    if isinstance(auth, str) and auth:
        return credential_scope("auth", f"{authenticator}\n{auth}" if authenticator else auth)
    if getattr(auth, "pk", None) is None:
        raise IdempotencyConfigurationError(
            f"request.auth is of type {type(auth).__qualname__!r}, which does not tell who is calling. Return a "
            "user, a model instance or the token from the authenticator, or pass scope=callable(request)."
        )
    if _is_access_token(auth):
        return _token_scope(auth)
    scope = scope_of_user(auth)
    # In some models the primary key is the secret token itself: in the REST framework's `Token`, and in sessions.
    is_secret = isinstance(auth.pk, str) and not hasattr(auth, "is_authenticated")
    return credential_scope("auth", scope) if is_secret else scope


def _token_scope(token: Model) -> str:
    """The scope of an OAuth 2 access token: its client, and its user if the token has a user. Runs no query.

    The scope does not contain the id of the token's row, because clients sometimes get a new token before they retry.

    Raises:
        IdempotencyConfigurationError: the token belongs to no client and no user.
    """
    client, user = _owner(token, "application"), _owner(token, "user")
    if client is None and user is None:
        raise IdempotencyConfigurationError(
            f"request.auth is a {token._meta.label} of no application and no user, and a new token would be another "
            "caller. Pass scope=callable(request)."
        )
    return acting_for(user) + client if client and user else str(client or user)


def _client(request: Any, user: Any) -> str | None:
    """The client that acts for the user, or None without a client. Two clients of one user are two callers."""
    token: Any = getattr(request, "auth", None)
    claims = getattr(token, "payload", token)
    if isinstance(claims, Mapping) and (name := claims.get("client_id") or claims.get("azp")):  # RFC 9068, OpenID
        return credential_scope("client", str(name))
    if "oauth2_provider" not in sys.modules:
        return None
    if not _is_access_token(token):
        token = getattr(request, "access_token", None)  # set by OAuth2ExtraTokenMiddleware
    if not _is_access_token(token) and getattr(user, "backend", None) == OAUTH_BACKEND:
        # OAuth2TokenMiddleware sets only the user, so the token must be read again.
        backends = import_module("oauth2_provider.oauth2_backends")
        _, verified = backends.get_oauthlib_core().verify_request(request, scopes=[])
        token = getattr(verified, "access_token", None)
    return _owner(token, "application") if _is_access_token(token) else None


def _owner(row: Model, name: str) -> str | None:
    """The name of a foreign key, with the model and the primary key of the row to which it points, or None."""
    field: Any = row._meta.get_field(name)
    value = getattr(row, field.attname)
    return None if value is None else f"{name}:{_place(field.related_model, row)}:{value}"


def _is_access_token(auth: Any) -> bool:
    """Whether `auth` is a token of django-oauth-toolkit or of the project's own token model.

    The classes are compared by their names, so that django-oauth-toolkit is not imported.
    """
    return any((base.__module__, base.__name__) == ACCESS_TOKEN for base in auth.__class__.__mro__)


def scope_of_user(user: Any) -> str:
    """The scope of a user's keys, unless the endpoint has a `scope=` of its own. Reads no database.

    Args:
        user: for example `request.user`.

    Returns:
        The scope, for `forget` and `forget_scope`.

    Raises:
        IdempotencyConfigurationError: for a user without a primary key.
    """
    primary_key = getattr(user, "pk", None)
    if primary_key is None:
        raise IdempotencyConfigurationError(
            f"the authenticated user {user!r} has no primary key to identify it. Pass scope=callable(request)."
        )
    # Django wraps request.user in a lazy object. So type(user) is the wrapper, but user.__class__ is the user's own
    # class.
    kind = user.__class__
    place = _place(kind, user) if issubclass(kind, Model) else f"{kind.__module__}.{kind.__qualname__}"
    return f"user:{place}:{primary_key}"


def acting_for(account: str) -> str:
    """The text with which the scopes of all clients of a user begin. No scope of another user begins with this text.

    The index of the scopes finds all scopes that begin with the text.
    """
    return f"for:{quote(account, safe=':/.@')}+"


def _place(model: Any, row: Model) -> str:
    """The model of a row, with the alias of the row's database if that database is not the default.

    The alias is needed because two people in two databases can have the same primary key.
    """
    # A proxy model shows the same accounts as its concrete model, so their scopes must be equal.
    label: str = model._meta.concrete_model._meta.label
    # This is the database where the row is written, because a retry can read the row from another replica.
    alias = router.db_for_write(model, instance=row)
    return label if alias == DEFAULT_DB_ALIAS else f"{alias}/{label}"


def _credential(request: Any) -> str | None:
    """A hash of the credentials that the client sent, so that the table contains no credential.

    Raises:
        Refused: the scheme of the Authorization header is not on the list.
    """
    sent = {}
    for header in get_settings().credential_headers:
        value = request.META.get(meta_name(header), "").strip()
        if value and header.lower() == "authorization":
            value = _authorization(value)
        if value:
            sent[header.lower()] = value
    if sent:
        # All credentials are used together, because tenants behind one gateway can send the same Authorization header
        # but different API keys. The values are joined by a line feed, because no header can contain a line feed.
        return credential_scope("+".join(sent), "\n".join(sent.values()))
    if (secret := _form_secret(request)) is not None:
        return credential_scope("csrf", secret)
    # The scope is made of the cookie that was sent, and not of request.session's key. If the first response sets a new
    # cookie but is lost, the retry sends the old cookie again.
    session = request.COOKIES.get(django_settings.SESSION_COOKIE_NAME)
    if not session:
        return None
    engine = import_module(django_settings.SESSION_ENGINE)
    if issubclass(engine.SessionStore, signed_cookies.SessionStore):
        return None  # the cookie contains the session's data, and changes with the data
    return credential_scope("session", session)


def _authorization(value: str) -> str:
    """The value of `Authorization` with its scheme in lower case. Without a credential, the result is empty."""
    first, *rest = value.split(maxsplit=1)
    scheme = first.lower()
    if not rest:
        return "" if scheme in SCHEMES else first  # a token without a scheme
    if scheme not in SCHEMES:
        raise Refused(credential_refused())
    return f"{scheme} {rest[0]}"


def _form_secret(request: Any) -> str | None:
    """The CSRF secret of a browser, if Django has really checked the secret of this request.

    A browser gets the CSRF secret before its first form, and keeps the secret. But often it gets the session cookie
    only with the first answer. With the session cookie as the scope, its second click would look like another caller.
    """
    if not getattr(request, "csrf_processing_done", False) or getattr(request, "_dont_enforce_csrf_checks", False):
        return None
    if django_settings.CSRF_USE_SESSIONS or django_settings.CSRF_COOKIE_NAME not in request.COOKIES:
        return None  # with CSRF_USE_SESSIONS, the browser gets a session with the form
    secret: str | None = request.META.get("CSRF_COOKIE")
    return secret


def credential_scope(kind: str, value: str) -> str:
    """The scope of all callers that know this secret."""
    return f"{kind}:{sha256(value.encode(errors='surrogatepass')).hexdigest()}"
