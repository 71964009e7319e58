"""This module is for clients that cannot set the header `Idempotency-Key`. The functions `from_form_field` and
`from_header` return values for the option `key`.

The option `key` is a function that returns the client's key. If the client sent no key, the function returns None. A
request without a key gets the answer 400. But if the option `required` is False, a request without a key is not
protected. A key must have 1 to 255 visible ASCII characters. A request with any other key gets the answer 400.
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
from .engine.protocol.key_syntax import InvalidKey, is_uuid, parse_header

__all__ = ["InvalidKey", "KeyReader", "caller_scope", "derived_key", "from_form_field", "from_header"]
__all__ += ["is_uuid", "key_reference"]

FORM_FIELD = "idempotency_key"
"""The name of the field that `{% idempotency_key %}` renders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReader:
    """You can pass a `KeyReader` as the option `key`. A `KeyReader` has a text for error answers.

    Attributes:
        read: `callable(request) -> str | None`, which can raise `InvalidKey`.
        source: where the client must put the key. Error answers end with this text: "This operation needs …".
    """

    read: Callable[[Any], str | None]
    source: str | Promise

    def __call__(self, request: Any) -> str | None:
        return self.read(request)


def from_form_field(name: str = FORM_FIELD) -> KeyReader:
    """Read the key from a field of an HTML form. The template tag `{% idempotency_key %}` renders such a field.

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

    The header's value must have the syntax of `Idempotency-Key`. If a request contains the header twice, the answer is
    400.

    Args:
        name: the name of the header.

    Returns:
        A value for the `key` option.
    """

    def read(request: Any) -> str | None:
        value = request.headers.get(name)
        return None if value is None else parse_header(value)

    return KeyReader(read=read, source=format_lazy(_("the request header {name}"), name=name))


def caller_scope(request: Any) -> str:
    """Return the scope that a request has if the option `scope` is not set.

    Start your own `scope` function from it, so that callers whom the package tells apart stay apart: `request.user`
    alone knows nothing of tokens, of the clients that act for a user, or of anonymous callers. Inside a `scope`
    function, it honours the endpoint's `anonymous`; elsewhere, the project's.

    To load the user, Django or your project can run queries.

    Args:
        request: the request that your `scope` function gets.

    Raises:
        PermissionDenied: the caller cannot be told apart: nothing identifies it under `anonymous="refuse"`, or its
            `Authorization` may change with each request. Inside of a `scope` function, the package answers 403 itself.
        IdempotencyConfigurationError: the user or the token does not identify the caller.
    """
    from .engine.request import adapters  # settings.py may import this module, before there are models

    return adapters.caller_scope(request)


def key_reference(key: str) -> str:
    """Return the reference of a key. Logs and traces show the reference, because the key can be secret.

    This function reads no database. The function `django_idempotency.maintenance.find_key` can find a key by its
    reference.

    Args:
        key: the client's key, without quotes.

    Returns:
        16 hexadecimal digits. They are the same for every caller who uses this key.
    """
    return digests.reference_of(digests.key_hash(key))


def derived_key(*, scope: str, operation: str, key: str, step: str) -> str:
    """Return the derived key of a call. With this key, you can find the call in the external service.

    The method `operation.derive_key(step)` returns the same key in each attempt.

    This function reads no database. The derived key is the same in each attempt, in each process and in each release of
    the package, as long as the project's `NAMESPACE` is the same.

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
