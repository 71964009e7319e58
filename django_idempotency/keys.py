"""Where does the key come from if clients cannot set the `Idempotency-Key` header?

The `key` option is a function that returns the client's key, or None if the client sent none. Use `from_form_field` or
`from_header` to create one. A request without a key is answered with 400, or runs unprotected if `required` is
False. A key consists of 1 to 255 visible ASCII characters; any other key is answered with 400.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from .engine.conf import get_settings
from .engine.protocol import digests
from .engine.protocol.key_syntax import KEY_HEADERS, InvalidKey, is_uuid, parse_header

__all__ = ["InvalidKey", "KeyReader", "caller_scope", "derived_key", "from_form_field", "from_header"]
__all__ += ["is_uuid", "key_reference"]

FORM_FIELD = "idempotency_key"
"""The name of the field that `{% idempotency_key %}` renders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReader:
    """A value for the `key` option, with a description for error responses.

    Attributes:
        read: `callable(request) -> str | None`, which can raise `InvalidKey`.
        source: where the client must put the key. Error responses say "This operation needs …", followed by this text.
    """

    read: Callable[[Any], str | None]
    source: str | Promise

    def __call__(self, request: Any) -> str | None:
        return self.read(request)


def from_form_field(name: str = FORM_FIELD) -> KeyReader:
    """Read the key from a field of an HTML form, such as the one that `{% idempotency_key %}` renders.

    The form is parsed before the view runs, so the view cannot set `request.upload_handlers`.

    Args:
        name: the name of the field.

    Returns:
        A value for the `key` option.
    """
    return KeyReader(
        read=lambda request: request.POST.get(name), source=format_lazy(_("the form field {name}"), name=repr(name))
    )


def from_header(name: str) -> KeyReader:
    """Read the key from another header, such as `webhook-id` (Standard Webhooks) or `X-GitHub-Delivery`.

    Its value must have the syntax of `Idempotency-Key`. A request that contains the header twice is answered with 400.

    Args:
        name: the name of the header.

    Returns:
        A value for the `key` option.
    """
    KEY_HEADERS.add(name)

    def read(request: Any) -> str | None:
        value = request.headers.get(name)
        return None if value is None else parse_header(value)

    return KeyReader(read=read, source=format_lazy(_("the request header {name}"), name=name))


def caller_scope(request: Any, *, configured: bool = False) -> str:
    """Return the scope that is used for a request if the `scope` option is not set.

    Build your own `scope` function on it, so that different callers still get different scopes: `request.user` alone
    says nothing about tokens, about clients that act for a user, or about anonymous callers. Inside a `scope` function,
    the endpoint's `anonymous` applies; elsewhere, the project's.

    Loading the user may run queries.

    Args:
        request: Django's, the REST framework's or Django Ninja's request.
        configured: return what `IDEMPOTENCY["SCOPE"]` returns, if the project sets it. Pass True for a `run_once` in a
            view that isn't protected itself, so that callers are told apart as in protected views. It has no effect
            inside a `scope` function.

    Raises:
        PermissionDenied: the caller cannot be told apart from others. Either nothing identifies it and `anonymous` is
            "refuse", or its `Authorization` header may change with each request, or the user's issuer is named only in
            a token that the authentication code does not hand on. Inside a `scope` function, the package itself
            answers 403.
        IdempotencyConfigurationError: the user, the token or `SCOPE` does not identify the caller.
    """
    from .engine.request import adapters  # settings.py may import this module before models are loaded

    return adapters.scope_outside(request, default=not configured)


def key_reference(key: str) -> str:
    """Return a key's reference. Logs and traces show it instead of the key, which can be a secret.

    No database is read. `django_idempotency.maintenance.find_key` finds a key by its reference.

    Args:
        key: the client's key, without quotes.

    Returns:
        16 hexadecimal digits, the same for every caller who uses this key.
    """
    return digests.reference_of(digests.key_hash(key))


def derived_key(*, scope: str, operation: str, key: str, step: str) -> str:
    """Return the derived key of a call, which you can use to find the call in the called service's records.

    No database is read. The derived key is the one that `operation.derive_key(step)` returns. It is the same in every
    attempt, process and release of the package, as long as the project's `NAMESPACE` doesn't change.

    Args:
        scope: the row's `scope`.
        operation: the row's `operation`.
        key: the row's `key`.
        step: the name of the call.

    Returns:
        A UUID (version 5) as text.
    """
    identity = digests.identify(scope=scope, operation=operation, key=key, stored=True)
    return digests.derived_key(identity, step, get_settings().namespace)
