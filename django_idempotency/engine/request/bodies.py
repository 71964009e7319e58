"""Reading a request's body without anyone noticing.

Whatever the view accepted without this package it accepts with it: its own parser, `request.read()`, its own
upload handlers, any size. So the stream is read into a file once and handed on rewound.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.core.handlers.wsgi import LimitedStream
from django.http import HttpRequest

CHUNK = 64 * 1024


@contextmanager
def open_body(request: HttpRequest) -> Iterator[IO[bytes] | None]:
    """The raw body, at its start; None if somebody has consumed the stream already (a parsed upload).

    On entry and on exit the request stands as if nobody had read it. Memory is bounded by
    FILE_UPLOAD_MAX_MEMORY_SIZE; what is more goes to FILE_UPLOAD_TEMP_DIR. Raises `UnreadablePostError` or
    `BadRequest` if the client goes away.
    """
    private: Any = request  # Django has no public way to hand a stream on
    if hasattr(request, "_body"):
        yield BytesIO(request.body)
    elif private._read_started:
        yield None
    else:
        spool = private._stream if isinstance(private._stream, _Spool) else _spooled(private)
        _hand_on(private, spool)
        try:
            yield spool
        finally:
            _hand_on(private, spool)


def _spooled(request: Any) -> _Spool:
    """Read the stream to its end."""
    # A size of 0 would mean no limit here; in the setting it means: keep nothing in memory.
    spool = _Spool(max_size=max(settings.FILE_UPLOAD_MAX_MEMORY_SIZE, 1), dir=settings.FILE_UPLOAD_TEMP_DIR)
    _close_with(request, spool)
    stream = request._stream
    try:
        for chunk in iter(lambda: request.read(CHUNK), b""):
            spool.write(chunk)
    except Exception:
        request._stream = _Lost()
        raise
    _hand_on(request, spool)
    _refuse_truncated(stream)
    return spool


def _close_with(request: Any, spool: _Spool) -> None:
    """With the request's uploaded files, when its response has been sent.

    Nobody closes the request of a test: then when it is collected, which on a server would let large files pile up.
    """
    finish, close = weakref.finalize(request, SpooledTemporaryFile.close, spool), request.close

    def closing() -> None:
        close()
        finish()

    request.close = closing


class _Spool(SpooledTemporaryFile[bytes]):
    """A stream that lives as long as its request: parsers close what they have read, as a socket's they may."""

    def close(self) -> None:
        pass


def show_loss(request: Any) -> None:
    """Where the view runs after all (observe=True) it must not take a body that was lost for an empty one.

    Not before: who writes a report about the error asks for `request.POST`, and may find nothing.
    """
    if isinstance(getattr(request, "_stream", None), _Lost):
        request._read_started = False


class _Lost(BytesIO):
    """What is left of a body that could not be read or kept."""

    def read(self, *args: Any) -> bytes:
        raise OSError("the request's body could not be read")

    readline = read


def _refuse_truncated(stream: Any) -> None:
    """A client that hangs up in mid-upload must not claim the key: its retry, in full, would be another request.

    Gunicorn hands over what it got as if that were the body. Only Django's own stream is judged: a middleware's
    (one that decompresses) may rightly be shorter than the request's Content-Length.
    """
    if type(stream) is LimitedStream and stream._pos < stream.limit:  # type: ignore[attr-defined]
        raise BadRequest("The request's body ended before its Content-Length.")


def _hand_on(request: Any, stream: IO[bytes]) -> None:
    stream.seek(0)
    request._stream = stream
    request._read_started = False
