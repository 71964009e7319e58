"""Reading a request's body so that the view can still read the body in its own way.

The view may use its own parser, `request.read()`, its own upload handlers, and bodies of any size. So the stream is
read into a file once, and the view gets that file, rewound.
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
    """The raw body, at its start. None if the stream has been consumed already, as by a parsed upload.

    On entry and on exit the request is in its unread state. Memory is bounded by FILE_UPLOAD_MAX_MEMORY_SIZE; a larger
    body goes to FILE_UPLOAD_TEMP_DIR.

    Raises:
        UnreadablePostError, BadRequest: the client has gone away.
    """
    private: Any = request  # Django has no public way to replace the stream of a request
    stream: Any = getattr(request, "_stream", None)
    spooled = isinstance(stream, _Spool) and not stream.closed
    if hasattr(request, "_body"):
        yield BytesIO(request.body)
    elif private._read_started and not spooled:
        yield None
    else:
        # A decorator above us that tries again hands over the request that the view has read already.
        spool = stream if spooled else _spooled(private)
        _hand_on(private, spool)
        try:
            yield spool
        finally:
            _hand_on(private, spool)


def _spooled(request: Any) -> _Spool:
    """Read the stream to its end."""
    # 0 means "no limit" to SpooledTemporaryFile. In the setting 0 means "keep nothing in memory".
    spool = _Spool(max_size=max(settings.FILE_UPLOAD_MAX_MEMORY_SIZE, 1), dir=settings.FILE_UPLOAD_TEMP_DIR)
    _close_with(request, spool)
    stream = request._stream
    try:
        for chunk in iter(lambda: request.read(CHUNK), b""):
            spool.write(chunk)
    except Exception:
        request._stream = _Lost()
        raise
    finally:
        stream.close()  # as request.body does: else an upload under ASGI would be kept twice
    received = spool.tell()
    _hand_on(request, spool)
    _refuse_truncated(stream, received)
    return spool


def _close_with(request: Any, spool: _Spool) -> None:
    """Close the spool with the request's uploaded files, when the response has been sent.

    The request of a test is never closed: there the spool is closed when the request is garbage-collected. On a server
    that would be too late, because large files would pile up.
    """
    finish, close = weakref.finalize(request, SpooledTemporaryFile.close, spool), request.close

    def closing() -> None:
        close()
        finish()
        request._read_started = True

    request.close = closing


class _Spool(SpooledTemporaryFile[bytes]):
    """A stream that lives as long as its request. Parsers close the stream they have read, which must not end it."""

    def close(self) -> None:
        pass


def show_loss(request: Any) -> None:
    """Let the view see that the body is lost: with observe=True the view runs, and an empty body would be wrong.

    Before that, an empty body is right: error reports read `request.POST`, which must not raise.
    """
    if isinstance(getattr(request, "_stream", None), _Lost):
        request._read_started = False


class _Lost(BytesIO):
    """Stands for a body that could not be read or kept: reading it raises."""

    def read(self, *args: Any) -> bytes:
        raise OSError("the request's body could not be read")

    readline = read


def _refuse_truncated(stream: Any, received: int) -> None:
    """Refuse the body of a client that hung up during its upload. Its complete retry would be another request.

    Gunicorn passes on the bytes it got as if they were the whole body. Only Django's own stream is checked: a
    middleware that decompresses has a stream of its own, which may be shorter than the request's Content-Length.
    """
    if type(stream) is LimitedStream and received < stream.limit:
        raise BadRequest("The request's body ended before its Content-Length.")


def _hand_on(request: Any, stream: IO[bytes]) -> None:
    stream.seek(0)
    request._stream = stream
    request._read_started = False
