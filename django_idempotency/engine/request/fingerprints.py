"""Is this the same request? 32 bytes that stand for everything the client asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import ImmutableList, MultiValueDict

from ...exceptions import IdempotencyConfigurationError
from ..protocol.digests import digest
from .bodies import CHUNK, open_body

if TYPE_CHECKING:
    from ..conf import Idempotency

MAX_PARSED_BYTES = 16 * 1024 * 1024
"""Where DATA_UPLOAD_MAX_MEMORY_SIZE is None. Parsed, JSON can take 25 times its size: see `_small`."""
MAX_EMPTY_FORM = 128
"""A boundary has at most 70 characters (RFC 2046 section 5.1.1)."""
CSRF_FIELD = "csrfmiddlewaretoken"
"""The token is new in each page, so it is not a part of the request that is compared."""


class Unparsable(Exception):
    """The body does not follow its content type. The view may still understand the bytes."""


def fingerprint_of(
    request: HttpRequest, options: Idempotency, asked_with: Any, parsed: Callable[[], Any] | None = None
) -> bytes | None:
    """The fingerprint under `options.fingerprint`; None: requests are not compared.

    Args:
        request: Django's request.
        options: resolved.
        asked_with: the request that option callables get.
        parsed: returns the framework's parsed data of a body that the framework has consumed already.

    Raises:
        IdempotencyConfigurationError: the body is gone, or the project's callable did not return bytes.
    """
    chosen = options.fingerprint
    if chosen is None:
        return None
    if callable(chosen):
        value = chosen(asked_with)
        if not isinstance(value, bytes):
            raise IdempotencyConfigurationError(f"fingerprint={chosen!r} returned {value!r}; return bytes.")
        return digest(b"custom", value)
    method, path = (request.method or "").encode(), request.get_full_path().encode()
    with open_body(request) as body:
        if isinstance(chosen, tuple):
            return digest(b"fields", method, path, _chosen_fields(request, body, chosen, parsed))
        content_type = (request.content_type or "").lower().encode()
        return digest(b"request", method, path, content_type, _payload(request, body, parsed))


def _payload(request: HttpRequest, body: IO[bytes] | None, parsed: Callable[[], Any] | None) -> bytes:
    try:
        return _canonical(_parsed(request, body, parsed))
    except Unparsable:
        return _bytes_digest(body)


def _chosen_fields(
    request: HttpRequest, body: IO[bytes] | None, names: tuple[str, ...], parsed: Callable[[], Any] | None
) -> bytes:
    try:
        fields = _parsed(request, body, parsed)
    except Unparsable:
        fields = None
    if not isinstance(fields, dict):
        return _payload(request, body, parsed)  # no fields to choose from: the whole body
    return _canonical({name: fields[name] for name in names if name in fields})


def _canonical(value: Any) -> bytes:
    """The value in one form: the order of keys and white space make no difference."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_by_content).encode()


def _by_content(value: Any) -> Any:
    """Values beside JSON that a framework's parser may produce. TypeError for any other object."""
    if isinstance(value, UploadedFile):
        return _uploaded(value)
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    return DjangoJSONEncoder().default(value)


def _bytes_digest(body: Any) -> bytes:
    """The digest of a body that cannot be parsed. There always is one: a consumed body never raises `Unparsable`."""
    hasher = sha256()
    body.seek(0)
    for chunk in iter(lambda: body.read(CHUNK), b""):
        hasher.update(chunk)
    return hasher.digest()


def _parsed(request: HttpRequest, body: IO[bytes] | None, parsed: Callable[[], Any] | None) -> Any:
    """The body's value: JSON, or a dict of form fields. Raises `Unparsable` for anything else."""
    if body is None and parsed is not None:
        value = parsed()
        if not isinstance(value, MultiValueDict):
            return value
        return _grouped((name, item) for name, items in value.lists() for item in items)
    content_type = (request.content_type or "").lower()
    if content_type == "multipart/form-data":
        return _multipart(request, body)
    if body is None:
        raise _consumed()
    if content_type == "application/x-www-form-urlencoded":
        return _urlencoded(_small(body))
    if content_type == "application/json" or content_type.endswith("+json"):
        return _json(_small(body))
    raise Unparsable


def _consumed() -> IdempotencyConfigurationError:
    return IdempotencyConfigurationError(
        "the request's body was consumed before the view (by a middleware that calls request.read()), so it cannot "
        "be compared with a retry's. Use request.body there, or pass fingerprint= to @idempotent."
    )


def _small(body: IO[bytes]) -> bytes:
    """A body that is small enough to be parsed. A larger one is compared by its bytes.

    `request.body` would refuse a larger one as well. Without the limit any client could make a view that never parses
    spend seconds and hundreds of megabytes.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    limit = MAX_PARSED_BYTES if limit is None else min(limit, MAX_PARSED_BYTES)
    body.seek(0)
    raw = body.read(limit + 1)
    if len(raw) > limit:
        raise Unparsable
    return raw


def _json(raw: bytes) -> Any:
    try:
        # Numbers with a fraction stay as they were written. As floats, two different amounts could become equal.
        return json.loads(raw, parse_float=lambda text: f"\0{text}", object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Unparsable from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(pairs)) != len(pairs):
        raise Unparsable  # parsers disagree which of two equal names counts
    return value


def _urlencoded(raw: bytes) -> dict[str, list[str]]:
    try:
        # latin-1 gives each byte its own character, for any charset.
        pairs = parse_qsl(
            raw.decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=settings.DATA_UPLOAD_MAX_NUMBER_FIELDS,
        )
    except ValueError as error:
        raise Unparsable from error
    return _grouped(pairs)


def _multipart(request: HttpRequest, body: Any) -> dict[str, list[Any]]:
    """Fields and file contents. The boundary is left out, because each retry has a new one."""
    fields: Any
    if body is None:
        # The view's own parser, or the CSRF middleware, has read request.POST already.
        fields, files = request.POST, request.FILES
        hashed = [(name, _uploaded(file)) for name, values in files.lists() for file in values]
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


def _uploaded(file: Any) -> list[Any]:
    hasher = sha256()
    file.seek(0)
    for chunk in file.chunks():
        hasher.update(chunk)
    file.seek(0)
    return [file.name, file.content_type, hasher.hexdigest()]


class _HashedFile:
    def __init__(self, value: list[Any]) -> None:
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
        return _HashedFile([self.file_name, self.content_type, self._hasher.hexdigest()])
