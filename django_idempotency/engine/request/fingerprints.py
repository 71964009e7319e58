"""Is this the same request? 32 bytes that stand for everything the client asked for.

# Note [What Django has read is compared]
A multipart form is compared by `request.POST` and `request.FILES`. Of every other request `request.body` is read first,
so the view, its parser and the check of a signature can read the body again. Nothing is put in the place of Django's
stream. So a view that reads the stream of a form, or sets upload handlers, passes `fingerprint=`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    RequestDataTooBig,
    SuspiciousOperation,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.core.files.uploadhandler import MemoryFileUploadHandler, TemporaryFileUploadHandler
from django.core.handlers.wsgi import LimitedStream, WSGIRequest
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import ImmutableList, MultiValueDict

from ...exceptions import IdempotencyConfigurationError
from ..conf import Fingerprint
from ..protocol.digests import digest
from .canonical import Digest, Number, canonical, escaped, is_heavier, only, plain, selected

if TYPE_CHECKING:
    from ..conf import Idempotency

MAX_PARSED_BYTES = 128 * 1024
"""A larger JSON or form body is compared by its bytes. Parsed, a form of `%41%41…` takes 85 times its size, and JSON up
to 40 times. So a body of this size costs at most 11 MiB and 20 ms; the 2.5 MiB that Django accepts would cost 200 MiB.
A constant: a setting that changes would give a retry another fingerprint."""
MAX_PARSED_WEIGHT = 2 * MAX_PARSED_BYTES
"""What a framework's parser makes of such a body is no heavier (`is_heavier`), unless it shares or unpacks items."""
CSRF_FIELD = "csrfmiddlewaretoken"
"""The token is new in each page, so it is not a part of the request that is compared."""
MULTIPART = "multipart/form-data"
JSON = re.compile(r"application/json|.*\+json")


UNREADABLE = (MultiPartParserError, TooManyFieldsSent, TooManyFilesSent, UnreadablePostError)
"""Django's own errors, after which it shows an empty body to the view."""


class Unparsable(Exception):
    """The body does not follow its content type. The view may still understand the bytes."""


class LengthRequired(Exception):
    """The client sent a chunked body. WSGI does not show it, so two different bodies would look the same."""


class BodyTooLarge(Exception):
    """Django does not hold this body in memory, so the body cannot be compared."""


def fingerprint_of(
    request: HttpRequest, options: Idempotency, asked_with: Any, parsed: Callable[[], Any] | None = None
) -> bytes | None:
    """The fingerprint under `options.fingerprint`; None: requests are not compared.

    See Note [What Django has read is compared].

    The first part of each digest is the version of what is compared. Another version never equals a stored one.

    Args:
        request: Django's request.
        options: resolved.
        asked_with: the request that option callables get.
        parsed: returns what the framework's parser has made of the body, or raises `Unparsable`. Default: the body is
            parsed here.

    Raises:
        IdempotencyConfigurationError: the body is gone, or the project's callable did not return bytes.
        BadRequest: the body is shorter than the client has said.
        LengthRequired, BodyTooLarge: the body cannot be compared.
    """
    chosen = options.fingerprint
    if chosen is None:
        return None
    method, path = (request.method or "").upper().encode(), request.get_full_path().encode()
    if hasattr(request, "urlconf"):
        method += _urlconf(request)
    if callable(chosen):
        value = chosen(asked_with)
        if not isinstance(value, bytes):
            raise IdempotencyConfigurationError(f"fingerprint={chosen!r} returned {value!r}; return bytes.")
        return digest(b"custom 2", method, path, value)
    content_type = (request.content_type or "").lower()
    payload = _payload(request, content_type, parsed)
    plain_type = not request.content_params and request.encoding is None
    parameters = _no_parameters(settings.DEFAULT_CHARSET) if plain_type else _parameters(request)
    if isinstance(chosen, tuple):
        if isinstance(payload, dict):  # else there are no fields to choose from: the whole body
            payload = only(payload, chosen)
        return digest(b"fields 2", method, path, parameters, canonical(payload))
    if isinstance(chosen, Fingerprint):
        payload = selected(payload, chosen)
        path = path if chosen.query else path.partition(b"?")[0]
    return digest(b"request 2", method, path, content_type.encode(), parameters, canonical(payload))


def _urlconf(request: HttpRequest) -> bytes:
    """The URLconf that a middleware has chosen, such as one for each host: one path may be two views. Else empty."""
    chosen: Any = request.urlconf
    name = getattr(chosen, "__name__", chosen)
    return f" {name}".encode() if isinstance(name, str) else b""


def _parameters(request: HttpRequest) -> bytes:
    """The parameters of the content type, and the charset by which Django decodes the body.

    The boundary is left out, because each retry has a new one. A charset is compared by its codec: none given, "utf-8"
    and "UTF8" are the same.
    """
    default = settings.DEFAULT_CHARSET
    given = dict(request.content_params or {})
    given.pop("boundary", None)
    given["charset"] = _codec(given.get("charset") or default)
    return canonical([given, _codec(request.encoding or default)])


@lru_cache(maxsize=8)
def _no_parameters(charset: str) -> bytes:
    """Of the most frequent request. Cached by the project's setting, and not by what a client sends."""
    return canonical([{"charset": _codec(charset)}, _codec(charset)])


def _codec(charset: str) -> str:
    try:
        return codecs.lookup(charset).name
    except (LookupError, ValueError):
        return charset.lower()


# --- reading


def _payload(request: HttpRequest, content_type: str, parsed: Callable[[], Any] | None) -> Any:
    """The body's value: JSON, a dict of form fields, or what the framework has parsed. Else the digest of its bytes."""
    if content_type == MULTIPART and (parsed is not None or request.method == "POST"):
        with suppress(Unparsable):  # a view without a parser for forms has left the body unread
            return _form(request, parsed)
    body: bytes | None = None
    try:
        body = request.body
    except RequestDataTooBig as error:
        raise BodyTooLarge from error
    except RawPostDataException:  # a parser has consumed the stream: no error if it is the framework's
        if parsed is None:
            raise _consumed() from None
    _refuse_incomplete(request, empty=not body)
    try:
        if parsed is not None:
            return _read_by_framework(request, content_type, body, parsed())
        return _value(request, content_type, body or b"")
    except Unparsable:
        if body is None:
            raise _consumed() from None
        return Digest(sha256(body).hexdigest())


def _form(request: HttpRequest, parsed: Callable[[], Any] | None) -> Any:
    """Fields and file contents of a multipart form. Files are hashed in pieces, and rewound."""
    try:
        form = _grouped(request.POST, request.FILES) if parsed is None else _plain(parsed())
    except (LookupError, ValueError) as error:  # a charset that does not exist, or that is none of text
        raise BadRequest("The form of this request cannot be read.") from error
    # Django makes the handlers immutable when it parses a form. Else the stream was taken in another way.
    if not form and parsed is None and not isinstance(request.upload_handlers, ImmutableList):
        raise _consumed()
    _refuse_incomplete(request, empty=not form)
    return form


def _consumed() -> IdempotencyConfigurationError:
    return IdempotencyConfigurationError(
        "the request's body was consumed before the view (by a middleware that calls request.read()), so it cannot "
        "be compared with a retry's. Use request.body there, or pass fingerprint= to @idempotent."
    )


def _refuse_incomplete(request: Any, *, empty: bool) -> None:
    """Refuse a body of which the server has shown only a part: its complete retry would be another request.

    Gunicorn passes on what it got before the client hung up as if that were the whole body.
    """
    if not empty and hasattr(request, "_body") and request.META.get("CONTENT_LENGTH") == str(len(request._body)):
        return  # nearly every request
    if empty and isinstance(request, WSGIRequest) and "HTTP_TRANSFER_ENCODING" in request.META and not _length(request):
        raise LengthRequired
    stream: Any = getattr(request, "_stream", None)  # Django has no public way to ask how much of a form has come
    if type(stream) is LimitedStream:
        received = stream._pos  # type: ignore[attr-defined]
    elif hasattr(request, "_body"):
        received = len(request.body)
    else:
        return  # an ASGI server hands over a form only when it is complete
    # A middleware that decompresses leaves the length of what was sent.
    if received < _length(request) and "HTTP_CONTENT_ENCODING" not in request.META:
        raise BadRequest("The request's body ended before its Content-Length.")


def _length(request: HttpRequest) -> int:
    """What the client has said about the length of its body. 0 if it has said nothing."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


# --- parsing


def _read_by_framework(request: HttpRequest, content_type: str, body: bytes | None, data: Any) -> Any:
    """What the framework's parser has made of the body, so that no body is parsed twice."""
    if body is not None and (not data or len(body) > MAX_PARSED_BYTES):
        raise Unparsable  # a parser without data may leave the reading to the view
    # JSON shares nothing. If the body is consumed, only the client has said how long it was.
    limit = MAX_PARSED_WEIGHT if body is not None else max(2 * _length(request), 5 * MAX_PARSED_WEIGHT)
    if not JSON.fullmatch(content_type) and is_heavier(data, limit):
        if body is None:
            raise BadRequest("The request's body stands for far more than its length.")
        raise Unparsable
    try:
        return _plain(data)
    except (TypeError, RecursionError) as error:
        if body is None:
            raise
        raise Unparsable from error


def _plain(data: Any) -> Any:
    return _grouped(data) if isinstance(data, MultiValueDict) else plain(data)


def _value(request: HttpRequest, content_type: str, body: bytes) -> Any:
    if len(body) > MAX_PARSED_BYTES:
        # Else any client could make a view that never parses spend seconds and hundreds of megabytes.
        raise Unparsable
    if content_type == "application/x-www-form-urlencoded":
        # latin-1 gives each byte its own character, for any charset.
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        return _by_name(pairs)
    if content_type == MULTIPART:  # of another method than POST, for which Django has no `request.POST`
        handlers = [MemoryFileUploadHandler(request), TemporaryFileUploadHandler(request)]
        try:
            return _grouped(*MultiPartParser(request.META, BytesIO(body), handlers, "latin-1").parse())
        except (MultiPartParserError, SuspiciousOperation) as error:
            raise Unparsable from error
    if not JSON.fullmatch(content_type):
        raise Unparsable
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")  # as json.loads does
        # A name can hold NUL only as an escape: the decoder refuses it elsewhere.
        return (_ESCAPING if "\\u0000" in text else _DECODER).decode(text)
    except (ValueError, RecursionError) as error:
        raise Unparsable from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Unparsable  # parsers disagree which of two equal names counts
    return value


_DECODER = json.JSONDecoder(parse_float=Number, object_pairs_hook=_unique)
_ESCAPING = json.JSONDecoder(
    parse_float=Number, object_pairs_hook=lambda pairs: {escaped(name): item for name, item in _unique(pairs).items()}
)


def _grouped(*forms: MultiValueDict[str, Any]) -> Any:
    """Fields and files as JSON, by name."""
    return plain(_by_name((name, item) for form in forms for name, items in form.lists() for item in items))


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        if name != CSRF_FIELD:
            fields.setdefault(name, []).append(value)
    return fields
