"""Is this the same request? 32 bytes that stand for everything the client asked for."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from os import SEEK_END
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import ImmutableList, MultiValueDict

from ...exceptions import IdempotencyConfigurationError
from ..conf import Fingerprint
from ..protocol.digests import digest, digest_of_chunks
from .bodies import CHUNK, open_body
from .canonical import TAG, Digest, Number, canonical, described_file, escaped, is_heavier, plain, uploaded
from .selection import only, selected

if TYPE_CHECKING:
    from ..conf import Idempotency

MAX_PARSED_BYTES = 128 * 1024
"""A larger JSON or form body is compared by its bytes. Parsed, a form of `%41%41…` takes 85 times its size, and JSON up
to 40 times. So a body of this size costs at most 11 MiB and 20 ms; the 2.5 MiB that Django accepts would cost 200 MiB.
A constant: a setting that changes would give a retry another fingerprint."""
MAX_PARSED_WEIGHT = 2 * MAX_PARSED_BYTES
"""What a framework's parser makes of such a body is no heavier (`is_heavier`), unless it shares or unpacks items."""
MAX_EMPTY_FORM = 128
"""A boundary has at most 70 characters (RFC 2046 section 5.1.1)."""
CSRF_FIELD = "csrfmiddlewaretoken"
"""The token is new in each page, so it is not a part of the request that is compared."""


class Unparsable(Exception):
    """The body does not follow its content type. The view may still understand the bytes."""


def fingerprint_of(
    request: HttpRequest,
    options: Idempotency,
    asked_with: Any,
    parsed: Callable[[], Any] | None = None,
    *,
    unparsed: bool = False,
) -> bytes | None:
    """The fingerprint under `options.fingerprint`; None: requests are not compared.

    The first part of each digest is the version of what is compared. Another version never equals a stored one.

    Args:
        request: Django's request.
        options: resolved.
        asked_with: the request that option callables get.
        parsed: returns what the framework's parser has made of the body. Default: the body is parsed here.
        unparsed: the framework does not parse this body, so its bytes are compared.

    Raises:
        IdempotencyConfigurationError: the body is gone, or the project's callable did not return bytes.
    """
    chosen = options.fingerprint
    if chosen is None:
        return None
    method, path = (request.method or "").upper().encode(), request.get_full_path().encode()
    method += _urlconf(request)
    if callable(chosen):
        value = chosen(asked_with)
        if not isinstance(value, bytes):
            raise IdempotencyConfigurationError(f"fingerprint={chosen!r} returned {value!r}; return bytes.")
        return digest(b"custom 2", method, path, value)
    with open_body(request) as body:
        payload: Any = _payload(request, body, parsed, unparsed=unparsed)
        if isinstance(chosen, tuple):
            if isinstance(payload, dict):  # else there are no fields to choose from: the whole body
                payload = only(payload, chosen)
            return digest(b"fields 2", method, path, _parameters(request), canonical(payload))
        if isinstance(chosen, Fingerprint):
            payload = selected(payload, chosen)
            path = path if chosen.query else path.partition(b"?")[0]
        content_type = (request.content_type or "").lower().encode()
        return digest(b"request 2", method, path, content_type, _parameters(request), canonical(payload))


def _payload(request: HttpRequest, body: IO[bytes] | None, parsed: Callable[[], Any] | None, *, unparsed: bool) -> Any:
    """The body's value, or the digest of its bytes."""
    try:
        if unparsed:
            raise Unparsable
        return _parsed(request, body, parsed)
    except Unparsable:
        return Digest(_bytes_digest(body))


def _urlconf(request: HttpRequest) -> bytes:
    """The URLconf that a middleware has chosen, such as one for each host: one path may be two views. Else empty."""
    chosen: Any = getattr(request, "urlconf", None)
    name = getattr(chosen, "__name__", chosen)
    return f" {name}".encode() if isinstance(name, str) else b""


def _parameters(request: HttpRequest) -> bytes:
    """The parameters of the content type, and the charset by which Django decodes the body.

    The boundary is left out, because each retry has a new one. A charset is compared by its codec: none given, "utf-8"
    and "UTF8" are the same.
    """
    default = settings.DEFAULT_CHARSET
    if not request.content_params and request.encoding is None:
        return _no_parameters(default)
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


def _bytes_digest(body: Any) -> str:
    """The digest of a body that is not parsed."""
    if body is None:
        raise _consumed()
    body.seek(0)
    return digest_of_chunks(iter(lambda: body.read(CHUNK), b""))


def _parsed(request: HttpRequest, body: IO[bytes] | None, parsed: Callable[[], Any] | None) -> Any:
    """The body's value: JSON, a dict of form fields, or what the framework has parsed. Else raises `Unparsable`."""
    content_type = (request.content_type or "").lower()
    is_multipart = content_type == "multipart/form-data"
    is_json = content_type == "application/json" or content_type.endswith("+json")
    if body is not None and not is_multipart:
        _refuse_large(body)
    if parsed is not None:
        data = parsed()
        # JSON shares nothing. An upload cannot be compared by its bytes, and Django limits its fields.
        if not (is_json or is_multipart) and is_heavier(data, _max_weight(request, body)):
            if body is None:
                raise BadRequest("The request's body stands for far more than its length.")
            raise Unparsable
        return _read_by_framework(request, body, data, is_multipart=is_multipart)
    if is_multipart:
        return _multipart(request, body)
    if body is None:
        raise _consumed()
    if content_type == "application/x-www-form-urlencoded":
        return _urlencoded(body.read())
    if is_json:
        return _json(body.read())
    raise Unparsable


def _max_weight(request: HttpRequest, body: IO[bytes] | None) -> int:
    """Of what a parser has made of a body. If the body is consumed, only the client has said how long it was."""
    if body is not None:
        return MAX_PARSED_WEIGHT
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = 0
    return max(2 * length, 5 * MAX_PARSED_WEIGHT)


def _read_by_framework(request: HttpRequest, body: IO[bytes] | None, data: Any, *, is_multipart: bool) -> Any:
    """What the framework's parser has made of the body, so that no body is parsed twice."""
    if body is not None and not data and not (is_multipart and _is_empty_form(request, body)):
        raise Unparsable  # the parser may leave the reading to the view
    if isinstance(data, MultiValueDict):
        data = _grouped((name, item) for name, items in data.lists() for item in items)
    try:
        return plain(data)
    except (TypeError, RecursionError) as error:
        if body is None:
            raise
        raise Unparsable from error


def _consumed() -> IdempotencyConfigurationError:
    return IdempotencyConfigurationError(
        "the request's body was consumed before the view (by a middleware that calls request.read()), so it cannot "
        "be compared with a retry's. Use request.body there, or pass fingerprint= to @idempotent."
    )


def _refuse_large(body: IO[bytes]) -> None:
    """Leave a large body to the comparison of bytes: see `MAX_PARSED_BYTES`.

    Without the limit any client could make a view that never parses spend seconds and hundreds of megabytes.
    """
    if body.seek(0, SEEK_END) > MAX_PARSED_BYTES:
        raise Unparsable
    body.seek(0)


def _json(raw: bytes) -> Any:
    try:
        return _DECODER.decode(raw.decode(json.detect_encoding(raw), "surrogatepass"))  # as json.loads does
    except (ValueError, RecursionError) as error:
        raise Unparsable from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Unparsable  # parsers disagree which of two equal names counts
    if TAG in "".join(value):
        return {escaped(name): item for name, item in pairs}
    return value


_DECODER = json.JSONDecoder(parse_float=Number, object_pairs_hook=_unique)


def _urlencoded(raw: bytes) -> dict[str, list[str]]:
    # latin-1 gives each byte its own character, for any charset.
    return _grouped(parse_qsl(raw.decode("latin-1"), keep_blank_values=True, encoding="latin-1"))


def _multipart(request: HttpRequest, body: Any) -> dict[str, list[Any]]:
    """Fields and file contents. The boundary is left out, because each retry has a new one."""
    fields: Any
    if body is None:
        # The view's own parser, or the CSRF middleware, has read request.POST already.
        fields, files = request.POST, request.FILES
        hashed = [(name, uploaded(file)) for name, values in files.lists() for file in values]
    else:
        body.seek(0)
        try:
            parser = MultiPartParser(request.META, body, [_HashingHandler(request)], "latin-1")
            fields, parsed_files = parser.parse()
        except (MultiPartParserError, SuspiciousOperation) as error:
            raise Unparsable from error
        hashed = [(name, file.value) for name, values in parsed_files.lists() for file in values]
    if not fields and not hashed and not _is_empty_form(request, body):
        raise Unparsable  # no form: the parser has skipped everything
    return _grouped([*((name, value) for name, values in fields.lists() for value in values), *hashed])


def _is_empty_form(request: HttpRequest, body: IO[bytes] | None) -> bool:
    """Has the client sent a form without fields? Bytes cannot be compared: each retry has a new boundary."""
    if body is None:
        # Django makes the handlers immutable when it parses an upload. Else the stream was taken in another way.
        if not isinstance(request.upload_handlers, ImmutableList):
            raise _consumed()
        return True
    body.seek(0)
    start = body.read(MAX_EMPTY_FORM).strip()
    boundary: Any = request.content_params.get("boundary", "") if request.content_params else ""
    return start == f"--{boundary}--".encode()


def _grouped(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        if name != CSRF_FIELD:
            fields.setdefault(name, []).append(value)
    return fields


class _HashedFile:
    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def close(self) -> None:
        """Called by the parser when it gives up a body: a bad part, too many files."""


class _HashingHandler(FileUploadHandler):
    """Hashes each file chunk by chunk and stores nothing."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._hasher = sha256()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._hasher.update(raw_data)

    def file_complete(self, file_size: int) -> Any:
        hexdigest = self._hasher.hexdigest()
        return _HashedFile(described_file(self.file_name, self.content_type, self.content_type_extra, hexdigest))
