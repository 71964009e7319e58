"""Who sent a request? The answer is its scope: callers with different scopes never share a key or a response."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from typing import Any
from urllib.parse import quote

from django.apps import apps
from django.conf import settings as django_settings
from django.contrib.sessions.backends import signed_cookies
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import ForeignKey, Model

from ...exceptions import IdempotencyConfigurationError
from ..conf import Options, get_settings, meta_name, resolve
from ..events import harmless
from ..execution.bridge import synchronous
from .problems import Refused, anonymous_refused, credential_refused

SCHEMES = frozenset(
    {
        *("access-token", "api-key", "api-token", "apikey", "apitoken", "basic", "bearer", "jwt", "key"),
        *("private-token", "ssws", "token", "x-api-key"),
    }
)
"""Authorization schemes, in lower case, whose value stays the same in a retry. With others, such as Digest, DPoP and
HMAC signatures, the value changes, and the retry would seem to come from another caller."""
PLACEHOLDERS = frozenset({"", "null", "undefined", "none", "og=="})
"""What clients send when they have no credential, in lower case. `Og==` is an empty name and password in Basic
authentication."""
ANONYMOUS = "anonymous"
DJANGO_AUSER = "django.contrib.auth.middleware"
"""The module of Django's own `auser`, which finds the same user as `request.user`."""
ACCESS_TOKENS = frozenset({("oauth2_provider.models", "AbstractAccessToken"), ("allauth.idp.oidc.models", "Token")})
"""Models of access tokens. A client may get a new token before a retry, so the row doesn't identify the caller."""
CLIENTS = ("application", "client")
"""How OAuth packages name the client that a token was issued to: as a foreign key, or as a model."""
LONGEST_ACCOUNT = 120
"""In characters. It leaves 130 of a readable scope for the client."""
logger = logging.getLogger("django_idempotency")
_asked_for: ContextVar[Options | None] = ContextVar("asked_for", default=None)


def user_scope(request: Any) -> str | None:
    """Return the scope of the user whom Django or a middleware has authenticated, or None. May run queries."""
    user = getattr(request, "user", None)
    if user is None or not is_authenticated(user):
        auser = getattr(request, "auser", None)
        if auser is None or getattr(getattr(auser, "func", None), "__module__", "") == DJANGO_AUSER:
            return None
        # An asynchronous middleware may set only this, and `login_required` uses only this for an `async def` view.
        user = synchronous(auser)()
        if not is_authenticated(user):
            return None
    issuer = None if isinstance(user, Model) else _issuer(getattr(request, "auth", None))
    return with_client(scope_of_user(user), request, issuer)


def with_client(caller: str, request: Any, issuer: str | None = None) -> str:
    """Return the caller's scope, combined with any OAuth client that acts on the caller's behalf in this request.

    `issuer` is added to it for a user whom only the issuer of a token knows.
    """
    added = [part for part in (_client(request), issuer) if part is not None]
    return acting_for(caller) + "+".join(added) if added else caller


def scope_of(
    request: Any, options: Options, caller: Callable[[Any], str | None] = user_scope, *, default: bool = False
) -> str:
    """Return the scope of the caller who sent this request.

    Args:
        request: the request that option callables are called with.
        options: the resolved options.
        caller: returns the scope of the caller whom the framework has authenticated, or None.
        default: whether to ignore the project's `scope=`.

    Raises:
        IdempotencyConfigurationError: the project's `scope=` function or user object does not identify the caller.
        Refused: the caller cannot be told apart from others.
    """
    if options.scope is not None and not default:
        token = _asked_for.set(options)
        try:
            scope = options.scope(request)
        finally:
            _asked_for.reset(token)
        if not isinstance(scope, str) or not scope:
            raise IdempotencyConfigurationError(f"scope={options.scope!r} returned {scope!r}; return a non-empty str.")
        return scope
    found = caller(request)
    return _credential(request, options) if found is None else found


def project_scope(request: Any, caller: Callable[[Any], str | None], *, default: bool) -> str:
    """Return the scope of a request to a protected view that has no `scope=` of its own.

    Inside a `scope=` function, the endpoint's `anonymous` option applies; elsewhere, the project-wide one does.

    Args:
        default: whether to ignore `IDEMPOTENCY["SCOPE"]`, as a `scope=` function must.

    Raises:
        IdempotencyConfigurationError: as `scope_of` does.
        PermissionDenied: the caller cannot be told apart from others. Inside a `scope=` function, `Refused` is raised
            instead.
    """
    options = _asked_for.get()
    try:
        return scope_of(request, options or resolve(), caller, default=default)
    except Refused as refused:
        if options is not None:
            raise
        raise PermissionDenied(refused.problem.detail) from refused


def is_authenticated(user: Any) -> bool:
    """Return whether a user is authenticated. The user can be any object that an authenticator has returned.

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


def authenticated_scope(request: Any, authenticator: str = "") -> str:
    """Return the scope of `request.auth` and of any OAuth client acting on the user's behalf. See `auth_scope`."""
    scope = auth_scope(request.auth, authenticator)
    # A user object does not identify the client, but a token elsewhere in the request may.
    return with_client(scope, request) if hasattr(request.auth, "is_authenticated") else scope


def name_among(authenticators: Sequence[Any], name_of: Callable[[Any], str], which: Any) -> str:
    """Return the name of one of the authenticators, with its number if others have the same name.

    Instances of one class, or closures of one function, are configured differently, and may return the same string for
    different callers. Only their order tells them apart, so a deployment that changes it also changes their scopes.
    """
    name = name_of(which)
    namesakes = [one is which for one in authenticators if name_of(one) == name]
    return name if len(namesakes) < 2 else f"{name}#{namesakes.index(True) + 1}"


def auth_scope(auth: Any, authenticator: str = "") -> str:
    """Return the scope for `request.auth`: a token, a user or a model instance set by the framework's authenticator.

    Args:
        authenticator: the name of the authenticator, if another one may set the same string for a different caller.

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
    # Some primary keys are secrets, such as those of Django REST framework's `Token` and Django's `Session`.
    is_secret = isinstance(auth.pk, str) and not hasattr(auth, "is_authenticated")
    return credential_scope("auth", scope) if is_secret else scope


def _token_scope(token: Model) -> str:
    """Return the scope of an OAuth 2 access token: its client, its user, or both. Runs no query.

    The token's primary key is left out, because a client may get a new token before a retry.

    Raises:
        IdempotencyConfigurationError: the token belongs to neither a client nor a user.
    """
    client, user = client_of(token), _owner(token, token._meta.get_field("user"))
    if client is None and user is None:
        raise IdempotencyConfigurationError(
            f"request.auth is a {token._meta.label} that belongs to no application and no user, and a new token would "
            "be another caller. Pass scope=callable(request)."
        )
    return acting_for(user) + client if client and user else str(client or user)


def _client(request: Any) -> str | None:
    """Return a string that identifies the OAuth client acting for the user, or None.

    Two clients that act for the same user count as different callers. The package first looks for the token where the
    framework or a middleware keeps it, and then in the header.
    """
    for name in ("auth", "access_token"):  # the second is set by OAuth2ExtraTokenMiddleware
        token = getattr(request, name, None)
        if token is not None and (client := client_of(token)) is not None:
            return client
    scheme, _, sent = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    if (client := client_of(sent.strip())) is not None:
        return client
    if not apps.is_installed("oauth2_provider"):
        return None
    # Some authenticators and middlewares set only the user, and don't keep the token.
    backends = import_module("oauth2_provider.oauth2_backends")
    _, verified = backends.get_oauthlib_core().verify_request(request, scopes=[])
    return client_of(getattr(verified, "access_token", None))


def client_of(token: Any) -> str | None:
    """Return a string that identifies the client named in the token, or None. Runs no query.

    A token is a JWT, its claims, or a row with a foreign key to a client. A JWT's signature has been checked by the
    code that authenticated the user.
    """
    if hasattr(token, "is_authenticated"):
        return None  # a user, whose own foreign keys do not identify a token's client
    if isinstance(token, Model):
        for field in token._meta.concrete_fields:
            if isinstance(field, ForeignKey):
                names = field.name, field.related_model.__name__.lower()
                if any(name.endswith(CLIENTS) for name in names) and (client := _owner(token, field)) is not None:
                    return client
        return None
    claims = _claims(token)
    if not (name := claims.get("client_id") or claims.get("azp")):
        return None
    return credential_scope("client", str(name))  # RFC 9068, OpenID


def _issuer(token: Any) -> str | None:
    """Return a string that identifies the issuer of a JWT, or None.

    Two issuers can give the same number to different users. A user who is a row of a table is the same for both.
    """
    named = _claims(token).get("iss")
    return credential_scope("issuer", str(named)) if named else None


def _claims(token: Any) -> Mapping[str, Any]:
    """Return the claims of a JWT: a text, whose signature is not checked, or an object. Other tokens have none."""
    claims = getattr(token, "payload", token)
    if isinstance(token, str):
        _, _, rest = token.partition(".")
        payload, dot, _ = rest.partition(".")
        try:
            claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))) if dot else None
        except (ValueError, RecursionError):
            claims = None
    return claims if isinstance(claims, Mapping) else {}


def _owner(row: Model, field: Any) -> str | None:
    """Return a foreign key's name with the model and primary key of its target, or None if the foreign key is empty."""
    value = getattr(row, field.attname)
    return None if value is None else f"{field.name}:{_place(field.related_model, row)}:{value}"


def _is_access_token(auth: Any) -> bool:
    """Return whether an object is an instance of an OAuth package's access token model, or of a model derived from it.

    Only the names of classes are compared, so none of the packages needs to be imported.
    """
    return any((base.__module__, base.__name__) in ACCESS_TOKENS for base in auth.__class__.__mro__)


def scope_of_user(user: Any) -> str:
    """Return a user's default scope, used if the `scope` option is not set. Pass it to `forget` or `forget_scope`.

    Runs no query.

    Args:
        user: for example `request.user`.

    Raises:
        IdempotencyConfigurationError: the user has no primary key.
    """
    primary_key = getattr(user, "pk", None)
    if primary_key is None:
        raise IdempotencyConfigurationError(
            f"the authenticated user {user!r} has no primary key to identify it. Pass scope=callable(request)."
        )
    # Not `type(user)`: Django wraps the user in a lazy object.
    kind = user.__class__
    place = _place(kind, user) if issubclass(kind, Model) else f"{kind.__module__}.{kind.__qualname__}"
    return f"user:{place}:{primary_key}"


def acting_for(account: str) -> str:
    """Return the prefix shared by the scopes of all OAuth clients that act for this account, and by no other scopes.

    The `scope` column has an index, which makes a query by prefix fast. A long account is hashed, because a scope that
    is too long would be stored as one hash, without this prefix.
    """
    quoted = quote(account, safe=":/.@")
    if len(quoted) > LONGEST_ACCOUNT:
        quoted = sha256(account.encode()).hexdigest()
    return f"for:{quoted}+"


def _place(model: Any, row: Model) -> str:
    """Return the label of a row's model, prefixed with the database alias if that is not the default.

    Users in different databases can have the same primary key.
    """
    # A proxy model shares the rows of its concrete model, so an account must have the same scope in both.
    label: str = model._meta.concrete_model._meta.label
    # The write alias, because a request may read from one replica and its retry from another.
    alias = router.db_for_write(model, instance=row)
    return label if alias == DEFAULT_DB_ALIAS else f"{alias}/{label}"


def _credential(request: Any, options: Options) -> str:
    """Return a scope with a hash of the client's credentials.

    The key table must not contain the credentials themselves.

    Raises:
        Refused: nothing identifies the caller and `anonymous` is "refuse", or the scheme of the Authorization header is
            not on the list.
    """
    conf, sent, identified = get_settings(), {}, False
    for header in conf.credential_headers:
        value = request.META.get(meta_name(header), "").strip()
        if value and header.lower() == "authorization":
            value = _authorization(value)
        if value.lower() not in PLACEHOLDERS:
            sent[header.lower()] = value
            # Every visitor's browser sends the shop's publishable key, which identifies the shop but not the visitor.
            identified = identified or not _sent_secret(value).startswith(conf.publishable_keys)
    # All credentials are hashed together: tenants behind one gateway may send the same Authorization header and
    # different API keys. The values are separated by a line feed, which no header value can contain.
    if not identified:
        if getattr(request, "csrf_processing_done", False) and (secret := _form_secret(request)) is not None:
            sent["csrf"], identified = secret, True
        # The cookie that the client sent, not the key of `request.session`: if the response that sets a new cookie
        # is lost, the retry carries the old one.
        elif session := request.COOKIES.get(django_settings.SESSION_COOKIE_NAME):
            engine = import_module(django_settings.SESSION_ENGINE)
            # A signed cookie contains the session's data, and changes with it.
            if not issubclass(engine.SessionStore, signed_cookies.SessionStore):
                sent["session"], identified = session, True
    if not identified and options.anonymous == "refuse":
        raise Refused(anonymous_refused())
    return credential_scope("+".join(sent), "\n".join(sent.values())) if sent else ANONYMOUS


def _authorization(value: str) -> str:
    """Return an `Authorization` header's value with its scheme in lower case; empty if it holds no credential."""
    first, *rest = value.split(maxsplit=1)
    scheme = first.lower()
    if not rest:
        return "" if scheme in SCHEMES else first  # a token without a scheme
    if scheme not in SCHEMES:
        raise Refused(credential_refused())
    return "" if rest[0].lower() in PLACEHOLDERS else f"{scheme} {rest[0]}"


def _sent_secret(value: str) -> str:
    """Return a header's credential without its scheme. In Basic authentication, an API key is the user name."""
    scheme, _, secret = value.rpartition(" ")
    if scheme == "basic":
        with suppress(ValueError):
            return b64decode(secret).decode(errors="replace")
    return secret


def _form_secret(request: Any) -> str | None:
    """Return the secret from a browser's CSRF cookie, or None if Django did not check such a cookie for this request.

    A browser gets the secret together with the form, but often gets its first session cookie only after submitting that
    form. If the session cookie identified the caller, a second click would seem to come from someone else.
    """
    if getattr(request, "_dont_enforce_csrf_checks", False):
        return None
    if django_settings.CSRF_USE_SESSIONS or django_settings.CSRF_COOKIE_NAME not in request.COOKIES:
        return None  # with CSRF_USE_SESSIONS, the session cookie comes with the form
    secret: str | None = request.META.get("CSRF_COOKIE")
    return secret


def credential_scope(kind: str, value: str) -> str:
    """Return a scope that contains the hash of a secret value. All callers who send that value share the scope."""
    return f"{kind}:{sha256(value.encode(errors='surrogatepass')).hexdigest()}"


@lru_cache(maxsize=1024)  # once for each operation, so that clients cannot fill the log
def warn_of_scheme(operation: str) -> None:
    with harmless():
        logger.warning(
            "%s refused an idempotency key: the value of its Authorization scheme may change with each request, so it "
            "does not identify a caller who retries. Set request.user before the view or pass scope=callable(request).",
            operation,
        )
