"""What makes two requests equal? A retry has the same 32-byte fingerprint as the first request with its key.

# Note [The comparison uses the data that Django has read]
The fingerprint of a multipart form is made from `request.POST` and `request.FILES`. Django fills them only for POST;
for other methods, the package parses `request.body` in the same way. For all other requests, the fingerprint is made
from `request.body`. Django keeps it, so a view or a parser can read it again. The stream of a multipart form, in
contrast, can be read only once, and has already been read by the time the view runs. A view that reads it directly, or
that sets upload handlers, therefore needs the `fingerprint=` option.

# Note [One form for equal values]
JSON and forms are converted into dicts, lists, strings and numbers, with the names in each dict sorted. The fingerprint
is a hash of their `ascii()` text, which is the same in every Python version. The order of the names and the whitespace
between JSON values make no difference. Numbers are compared by value, with the precision that the view's parser
preserves: 1, 1.0 and 1e0 are equal, and 9007199254740993 differs from 9007199254740992. Strings and bools are not
compared as numbers. Uploaded files become tuples. JSON has no tuples, so a JSON body can never have the same
fingerprint as a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import sha256
from io import BytesIO
from math import isfinite
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from django.conf import settings
from django.core import exceptions
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler, TemporaryFileUploadHandler
from django.core.handlers.wsgi import LimitedStream, WSGIRequest
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import ImmutableList, MultiValueDict

from ...exceptions import IdempotencyConfigurationError
from ..conf import Options
from ..protocol.versions import MAX_PLAIN, Fingerprint, fingerprint, integer, number, versioned
from .problems import Refused, body_too_large, length_required

MAX_PARSED_BYTES = 128 * 1024
"""If a JSON or form body is larger, its raw bytes are compared, because parsing takes memory: up to 85 times the size
of a form (`%41%41…`), and up to 40 times the size of JSON. For 128 KiB, that is at most 11 MiB and 20 ms; for the 2.5
MiB that Django accepts, it would be 200 MiB. The limit isn't a setting, because a retry after it was changed would
get a different fingerprint.
"""
REPEATED = (str, int, float, bool, type(None), UUID, Decimal, date, datetime, time)
"""Types of URL arguments whose string form is the same in every process. Converters can also return other types."""
CSRF_FIELD = "csrfmiddlewaretoken"
"""The CSRF token, which is different on every page, is left out of the comparison."""
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
UNENCODED = re.compile(rb"[\x00-\x1f\"<]")
"""Bytes that are always encoded in a form. A body that contains one of them may be JSON or XML, and some views parse
such a body whatever its content type is. A form's parser would skip most of it."""
LISTED = re.compile(r"^(?:\[[0-9]+\])+\.?")
"""How the name of a field begins in a form that is a list, such as `[0]amount`."""
NESTED = re.compile(r"[\[.]")
"""Where the name of a field ends in names such as `amounts[0]` and `amounts.total`."""
JSON = re.compile(r"application/json|.*\+json")
PATCHES = "-patch+json"
"""How the content types of JSON patches end. The same JSON means something different in each of these types."""
BEGINS = {"gzip": b"\x1f\x8b", "deflate": b"\x78", "zstd": b"\x28\xb5\x2f\xfd"}
"""The first bytes of a body that is still encoded. Brotli has no such bytes, so code that decompresses a Brotli body
must set CONTENT_LENGTH."""
UNREADABLE = (MultiPartParserError, exceptions.TooManyFieldsSent, exceptions.TooManyFilesSent, UnreadablePostError)
"""Errors that Django raises while it reads a form. After such an error, the view would get an empty body."""


Reader = Callable[[Any, Options, str], Any]


class Unparsable(Exception):
    """There is no parsed data to compare, so the bytes are compared.

    A body that is declared as JSON but isn't valid JSON is not refused, because some views can read it anyway.
    """


def fingerprint_of(request: HttpRequest, options: Options, asked_with: Any, read: Reader) -> Fingerprint:
    """Return a hash of the request's target, and of the parts of its query and payload that `fingerprint=` selects.

    See Note [The comparison uses the data that Django has read]. Each fingerprinting method has a version, which is
    included in the hash so that fingerprints from different versions are never equal.

    Args:
        request: Django's request.
        options: the resolved options.
        asked_with: the request that option callables are called with.
        read: reads the body as the view's framework does. For a framework without parsers of its own, this is
            `payload_of`.

    Raises:
        IdempotencyConfigurationError: the body cannot be read again, or the project's callable did not return bytes.
        BadRequest: the body is shorter than the client said.
        Refused: the body cannot be compared.
    """
    chosen = options.fingerprint
    method = (request.method or "").upper()
    # Middleware can set a different URLconf for each host, so the same path can lead to different views.
    urlconf: Any = getattr(request, "urlconf", None)
    if isinstance(name := getattr(urlconf, "__name__", urlconf), str):
        method += f" {name}"
    target = request.path if options.operation is None else _captured(request, options.operation)
    query = request.META.get("QUERY_STRING", "")
    if chosen is None:
        return fingerprint("target 1", ascii((method, target)))
    if callable(chosen):
        value = chosen(asked_with)
        if not isinstance(value, bytes):
            raise IdempotencyConfigurationError(f"fingerprint={chosen!r} returned {value!r}; return bytes.")
        address = request.get_full_path() if target == request.path else f"{target}?{query}"
        return fingerprint("custom 2", method.encode(), address.encode(), value)
    content_type = (request.content_type or "").lower()
    payload = read(asked_with, options, content_type)
    if isinstance(chosen, tuple):
        payload = selected(payload, chosen, form=content_type in (FORM, MULTIPART))
    named = tuple((request.content_params or {}).items())
    parameters = _parameters(named, request.encoding, settings.DEFAULT_CHARSET)
    parts = method, target, query, _kind(content_type), parameters
    try:
        return fingerprint("request 4", ascii((*parts, payload)))
    except RecursionError:  # a parser may accept values that are nested too deeply for `ascii`
        return fingerprint("request 4", ascii((*parts, sha256(request.body).digest())))


@lru_cache(maxsize=16)
def _kind(content_type: str) -> str:
    """Return the content type. JSON types such as application/vnd.api+json are all the same, except for patches."""
    if content_type == "application/json" or not JSON.fullmatch(content_type) or content_type.endswith(PATCHES):
        return content_type
    return versioned("'application/json'", ascii(content_type))


def _captured(request: HttpRequest, operation: str) -> str:
    """Return the URL's arguments as the target of an operation that is named by the `operation` option.

    The operation's keys survive if the route is renamed. A request about one object never gets the response for
    another, even with the same key.

    If the arguments are unknown, or if an argument's text may differ in a retry, the target is the path instead. The
    same applies if a project sets the option to the operation's default name in order to keep using the keys already
    stored.
    """
    match_: Any = request.resolver_match
    args, kwargs = getattr(match_, "args", None), getattr(match_, "kwargs", None)
    if args is None or kwargs is None or not all(type(value) in REPEATED for value in (*args, *kwargs.values())):
        return request.path
    if operation == f"{(request.method or '').upper()} {getattr(match_, 'route', None)}":
        return request.path
    return ascii(((*args,), sorted(kwargs.items())))


@lru_cache(maxsize=16)  # nearly all requests have the same content type
def _parameters(named: tuple[tuple[str, str], ...], encoding: str | None, default: str) -> str:
    """Return one string with the content type's parameters and the charset that Django uses to decode the body.

    The boundary is left out, because each retry has a new one. If no charset is given, Django's default is used.
    """
    given = dict(named)
    given.pop("boundary", None)
    charsets = given.pop("charset", "") or default, encoding or default
    return ascii((*map(str.lower, charsets), sorted(given.items())))


# --- reading


def payload_of(request: HttpRequest, options: Options, content_type: str) -> Any:
    """Return the parsed body if it is JSON or a form, else a hash of its bytes."""
    if content_type == MULTIPART and request.method == "POST" and _may_be_form(request):
        return _form(request, partial(_djangos_form, request))
    stream = getattr(request, "_stream", None)  # Django's own stream counts bytes; reading the body replaces the stream
    try:
        body = request.body
    except exceptions.RequestDataTooBig as error:
        raise Refused(body_too_large()) from error
    except RawPostDataException:
        raise _consumed() from None  # other code has read it before the view
    _refuse_incomplete(request, stream, empty=not body)
    try:
        return _patched(request, body) if content_type == MULTIPART else _value(content_type, body)
    except Unparsable:
        return sha256(body).digest()


def parsed_payload_of(request: HttpRequest, content_type: str, parsed: Callable[[], Any]) -> Any:
    """The counterpart of `payload_of` for a view whose framework parses the body.

    Args:
        parsed: returns the data from the framework's parser, or raises `Unparsable`.
    """
    if content_type == MULTIPART and _may_be_form(request):
        with suppress(Unparsable):  # without a parser for forms, `request.body` is read instead
            return _form(request, lambda: plain(parsed()))
    body: bytes | None = None
    stream = getattr(request, "_stream", None)
    try:
        body = request.body
    except exceptions.RequestDataTooBig as error:
        raise Refused(body_too_large()) from error
    except RawPostDataException:
        pass  # the parser has already read the stream, and its data is compared
    _refuse_incomplete(request, stream, empty=not body)
    try:
        return _read_by_framework(content_type, body, parsed())
    except Unparsable:
        if body is None:
            raise _consumed() from None
        return sha256(body).digest()


def _form(request: HttpRequest, read: Callable[[], Any]) -> Any:
    """Return the fields and file contents of a multipart form. The view can still read the files."""
    try:
        form = read()
    except (LookupError, ValueError) as error:
        # Python doesn't know the form's charset, or its codec for that charset does not return text.
        raise exceptions.BadRequest("The form of this request cannot be read.") from error
    _refuse_incomplete(request, getattr(request, "_stream", None), empty=not form)
    return form


def _djangos_form(request: HttpRequest) -> Any:
    form = _grouped(request.POST, request.FILES)
    # Django makes the list of upload handlers immutable when it parses a form. If the form is empty and
    # the list is still mutable, other code has read the stream.
    if not form and not isinstance(request.upload_handlers, ImmutableList):
        raise _consumed()
    return form


def _may_be_form(request: Any) -> bool:
    """Return whether the body begins like a form. A form parser would skip most of a JSON or XML body."""
    return getattr(request, "_body", b"--").lstrip().startswith(b"--")


def _patched(request: HttpRequest, body: bytes) -> Any:
    """Return the content of a multipart form that Django does not parse, because the method is not POST.

    The request keeps its own upload handlers, so the view can still read the form in its own way.
    """
    if not _may_be_form(request):
        raise Unparsable
    handlers = [MemoryFileUploadHandler(request), TemporaryFileUploadHandler(request)]
    try:
        fields, files = MultiPartParser(request.META, BytesIO(body), handlers, request.encoding).parse()
        with ExitStack() as parsed:
            for _, uploaded in files.lists():
                for file in uploaded:
                    parsed.callback(file.close)  # as `request.close()` does with the files of a POST
            form = _grouped(fields, files)
    except (*UNREADABLE, LookupError, ValueError) as error:
        raise Unparsable from error
    # Django finds no fields if the body lacks the boundary. It replaces bytes that aren't text, although the view may
    # read them.
    if not form or r"\ufffd" in ascii(form):
        raise Unparsable
    return form


def _consumed() -> IdempotencyConfigurationError:
    return IdempotencyConfigurationError(
        "the request's body was consumed before the view (by a middleware that calls request.read(), or by a "
        "permission that reads request.data when the body is neither JSON nor a form), so it cannot be compared with a "
        "retry's. Use request.body there, or pass fingerprint= to @idempotent."
    )


def _refuse_incomplete(request: Any, stream: Any, *, empty: bool) -> None:
    """Refuse an incomplete body, because a retry with the complete one would have a different fingerprint.

    Gunicorn, for example, passes on an incomplete body without an error if the client closes the connection too early.
    """
    # Some test clients and servers set CONTENT_LENGTH to a number.
    said = str(request.META.get("CONTENT_LENGTH", ""))
    length = int(said) if said.isdecimal() else 0
    if empty and isinstance(request, WSGIRequest) and "HTTP_TRANSFER_ENCODING" in request.META and not length:
        # Under WSGI, Django reads a body that is sent in chunks as empty, so two different bodies would look equal.
        raise Refused(length_required())
    if type(stream) is LimitedStream:
        received = stream._pos  # type: ignore[attr-defined]
    elif hasattr(request, "_body"):
        encoded = "HTTP_CONTENT_ENCODING" in request.META
        received = length if encoded and _decompressed(request) else len(request.body)
    else:
        return  # under ASGI, Django gets a form only after the server has received all of it
    if received < length:
        raise exceptions.BadRequest("The request's body ended before its Content-Length.")


def _decompressed(request: Any) -> bool:
    """Return whether a middleware has decompressed the body, but kept the Content-Length of the compressed one."""
    encoding = request.META["HTTP_CONTENT_ENCODING"].lower().removeprefix("x-")
    begins = BEGINS.get(encoding, b"")
    return not begins.startswith(request.body[: len(begins)])


# --- parsing


def _read_by_framework(content_type: str, body: bytes | None, data: Any) -> Any:
    """Return what the framework's parser has read from a JSON or form body, to avoid parsing it again.

    Other parsers return objects of any kind and size: a YAML parser can make millions of values from a few bytes.
    """
    if content_type != FORM and not JSON.fullmatch(content_type):
        raise Unparsable
    if content_type == FORM and body is not None and UNENCODED.search(body):
        raise Unparsable
    if body is not None and (not data or len(body) > MAX_PARSED_BYTES):
        raise Unparsable  # some parsers return no data, and the view reads the body itself
    try:
        return plain(data)
    except (TypeError, RecursionError) as error:
        raise Unparsable from error


def _value(content_type: str, body: bytes) -> Any:
    if len(body) > MAX_PARSED_BYTES:
        # Parsing it could take seconds and hundreds of megabytes.
        raise Unparsable
    try:
        if JSON.fullmatch(content_type):
            text = body.decode(json.detect_encoding(body), "surrogatepass")  # as json.loads does
            return _DECODER.decode(text)
        if content_type == FORM:
            if UNENCODED.search(body):
                raise Unparsable
            body.decode()  # Django reads a body that isn't UTF-8 in another way
            # In latin-1 each byte is one character, so different bytes stay different regardless of the charset.
            return _by_name(parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1"))
    except (ValueError, RecursionError) as error:
        raise Unparsable from error
    raise Unparsable


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    pairs.sort(key=itemgetter(0))
    value = dict(pairs)
    if len(value) != len(pairs):
        # The object contains a name twice: some parsers use its first value, others the last.
        raise Unparsable
    return value


def _literal(text: str) -> Any:
    return int(text) if len(text) <= MAX_PLAIN else integer(int(text))


_DECODER = json.JSONDecoder(parse_float=number, parse_int=_literal, object_pairs_hook=_sorted)


def plain(value: Any) -> Any:
    """Turn a value from a framework's parser into dicts, lists and similar types, keeping different values distinct.

    Raises:
        TypeError: for an object that is neither JSON nor a file, bytes or a Decimal.
        RecursionError: for a value nested too deeply.
    """
    if isinstance(value, MultiValueDict):
        return _grouped(value)
    if isinstance(value, dict):
        return _sorted([(str(name), plain(item)) for name, item in value.items()])
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, bytes)):
        return value
    return _number(value) if isinstance(value, (int, float, Decimal)) else _tagged(value)


def _number(value: float | Decimal) -> Any:
    if isinstance(value, int):
        return integer(value)
    if not isfinite(value):
        return value if isinstance(value, float) else ("decimal", str(value))
    if isinstance(value, float):
        return number(float.__repr__(value))
    return number(str(value), ascii(("decimal", str(value))))


def _grouped(*forms: MultiValueDict[str, Any]) -> Any:
    """Return a dict with a list of values for each name, because a form can contain a name more than once."""
    return plain(_by_name((name, item) for form in forms for name, items in form.lists() for item in items))


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        if name != CSRF_FIELD:
            fields.setdefault(name, []).append(value)
    return _sorted([*fields.items()])


def _tagged(value: Any) -> Any:
    """Turn an uploaded file into a tuple. See Note [One form for equal values]."""
    if not isinstance(value, UploadedFile):
        raise TypeError(f"{value!r:.100} of a request's body cannot be compared with a retry's. Pass fingerprint=.")
    value.seek(0)
    hasher = sha256()
    for chunk in value.chunks():
        hasher.update(chunk)
    value.seek(0)
    # The parameters of the file's content type also matter: the charset, for example, can change how the view reads
    # the file.
    return value.name, value.content_type, plain(value.content_type_extra or {}), hasher.hexdigest()


def selected(value: Any, names: Collection[str], *, form: bool = False) -> Any:
    """Return the chosen fields of a form or a JSON object, or of each object in a list.

    An object that contains none of the chosen fields is kept whole. In a form, choosing `amounts` also chooses its
    parts: the REST framework also reads this field from `amounts[0]` and `amounts.total`. In a list of objects, it
    reads the field from `[0]amounts`.
    """
    if isinstance(value, list):
        return [selected(item, names, form=form) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict):
        return value
    if form:
        names = {*names, *(name.encode().decode("latin-1") for name in names)}  # see `_value`
    chosen = (name for name in value if name in names or (form and NESTED.split(LISTED.sub("", name), 1)[0] in names))
    return {name: value[name] for name in chosen} or value
