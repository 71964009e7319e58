"""Readers for the `key` option, for clients that cannot set the `Idempotency-Key` header.

A reader returns the key, or None if the client sent none (400, or unprotected with `required=False`). The key is
checked as every key is: 1 to 255 visible ASCII characters, else 400.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from django.http.request import RawPostDataException
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .engine.protocol import digests
from .engine.protocol.key_syntax import InvalidKey, check_key, is_uuid, parse_header
from .engine.request.key import KeyReader
from .exceptions import IdempotencyConfigurationError

__all__ = [
    "InvalidKey",
    "KeyReader",
    "derived_key",
    "from_cloudevent",
    "from_form_field",
    "from_header",
    "from_json",
    "is_uuid",
    "key_reference",
]

FORM_FIELD = "idempotency_key"
"""The name of the field that `{% idempotency_key %}` renders."""


def from_form_field(name: str = FORM_FIELD) -> KeyReader:
    """Read a form's field, such as the one that `{% idempotency_key %}` renders.

    Django parses the form before the view runs. So a view cannot set `request.upload_handlers` any more, as is true
    behind the CSRF middleware.

    Args:
        name: the name of the field.

    Returns:
        A value for the `key` option.
    """

    return KeyReader(
        read=lambda request: request.POST.get(name), source=format_lazy(_("the form field {name}"), name=repr(name))
    )


def from_header(name: str) -> KeyReader:
    """Read another request header: `webhook-id` (Standard Webhooks), `X-GitHub-Delivery`.

    The value has the syntax of `Idempotency-Key`, with or without quotes. A list is refused with 400: servers make a
    list of a header that was sent twice, and a list would count as another key.

    Args:
        name: the name of the header.

    Returns:
        A value for the `key` option.
    """

    def read(request: Any) -> str | None:
        value = request.headers.get(name)
        return None if value is None else parse_header(value)

    return KeyReader(read=read, source=format_lazy(_("the request header {name}"), name=name))


def from_json(*path: str) -> KeyReader:
    """Read a string or a whole number in a JSON body: `from_json("id")` (Stripe), `from_json("data", "id")`.

    The body is read into memory (DATA_UPLOAD_MAX_MEMORY_SIZE applies), and the view can read it again.

    Args:
        path: the names of the field and of the objects around it, outermost first.

    Returns:
        A value for the `key` option.

    Raises:
        IdempotencyConfigurationError: no field is named.
    """
    if not path or not all(isinstance(name, str) and name for name in path):
        raise IdempotencyConfigurationError(f'from_json{path!r}: name the field, as in from_json("data", "id").')
    field = ".".join(path)

    def read(request: Any) -> str | None:
        value = _json_body(request)
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None and not isinstance(value, str):
            raise InvalidKey(gettext("The field %(field)s is not a string.") % {"field": field})
        return value

    return KeyReader(read=read, source=format_lazy(_("a string in the field {field} of its JSON body"), field=field))


def from_cloudevent() -> KeyReader:
    """Read `source` and `id` of a CloudEvent, from its headers or its JSON envelope. An `id` is unique in its `source`.

    https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md#id

    Returns:
        A value for the `key` option.
    """

    def read(request: Any) -> str | None:
        if (request.content_type or "").lower() == "application/cloudevents+json":
            envelope = _json_body(request)
            attributes = envelope if isinstance(envelope, dict) else {}
        else:
            attributes = {name: request.headers.get(f"ce-{name}") for name in ("source", "id")}
        source, id_ = attributes.get("source"), attributes.get("id")
        if not (isinstance(source, str) and source and isinstance(id_, str) and id_):
            return None
        # The length keeps pairs apart: else source "a" with id "b:c" would be equal to source "a:b" with id "c".
        key = f"{len(source)}:{source}:{id_}"
        try:
            return check_key(key)
        except InvalidKey:
            # A CloudEvent may be longer than a key, or hold spaces. JSON may hold half a surrogate pair.
            return f"sha256:{sha256(key.encode(errors='surrogatepass')).hexdigest()}"

    return KeyReader(read=read, source=_("the CloudEvents attributes source and id"))


def _json_body(request: Any) -> Any:
    try:
        body = request.body
    except RawPostDataException:
        raise IdempotencyConfigurationError(
            "the request's body was consumed before the key could be read from it. Read request.body there."
        ) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidKey(gettext("The body is not JSON.")) from error


def key_reference(key: str) -> str:
    """The reference that names a key in logs and traces, where the key itself, perhaps a secret, does not belong.

    Asks no database. `django_idempotency.maintenance.find_key` takes a reference as well as a key.

    Args:
        key: the client's key, without quotes.

    Returns:
        16 hexadecimal digits, the same for every caller of the key.
    """
    return digests.reference_of(digests.key_hash(key))


def derived_key(*, scope: str, operation: str, key: str, step: str) -> str:
    """The key that `operation.derive_key(step)` gives to the other side, for looking a call up in its books.

    Asks no database. The result never changes: not between attempts, processes or releases.

    Args:
        scope: the row's `scope`.
        operation: the row's `operation`.
        key: the row's `key`.
        step: the name of the call.

    Returns:
        A UUID (version 5) as text.
    """
    return digests.derived_key(digests.stored_identity(scope=scope, operation=operation, key=key), step)
