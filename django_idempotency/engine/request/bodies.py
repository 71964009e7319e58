"""Reading a request's body so that the view can still read the body in its own way.

The view may use its own parser, `request.read()`, its own upload handlers, and bodies of any size. So the stream is
read once, into memory if the body is small, else into a file. The view gets what was kept, rewound.
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
    read_before = isinstance(stream, (_InMemory, _OnDisk)) and not stream.closed
    if hasattr(request, "_body"):
        yield BytesIO(request.body)
    elif private._read_started and not read_before:
        yield None
    else:
        # A decorator above us that tries again hands over the request that the view has read already.
        kept = stream if read_before else _kept(private)
        _hand_on(private, kept)
        try:
            yield kept
        finally:
            _hand_on(private, kept)


def _kept(request: Any) -> IO[bytes]:
    """Read the stream to its end."""
    kept: IO[bytes] = _InMemory()
    limit, stream = settings.FILE_UPLOAD_MAX_MEMORY_SIZE, request._stream
    try:
        while chunk := request.read(CHUNK):
            kept.write(chunk)
            if isinstance(kept, _InMemory) and kept.tell() > limit:
                kept = _moved_to_disk(request, kept)
    except Exception:
        request._stream = _Lost()
        raise
    finally:
        stream.close()  # as request.body does: else an upload under ASGI would be kept twice
    received = kept.tell()
    _hand_on(request, kept)
    _refuse_truncated(stream, received)
    return kept


def _moved_to_disk(request: Any, kept: _InMemory) -> _OnDisk:
    file = _OnDisk(dir=settings.FILE_UPLOAD_TEMP_DIR)
    _close_with(request, file)
    file.rollover()
    file.write(kept.getvalue())
    return file


def _close_with(request: Any, file: _OnDisk) -> None:
    """Close the file with the request's uploaded files, when the response has been sent.

    The request of a test is never closed: there the file is closed when the request is garbage-collected. On a server
    that would be too late, because large files would pile up.
    """
    finish, close = weakref.finalize(request, SpooledTemporaryFile.close, file), request.close

    def closing() -> None:
        close()
        finish()
        request._read_started = True

    request.close = closing


class _InMemory(BytesIO):
    """A stream that lives as long as its request. Parsers close the stream they have read, which must not end it."""

    def close(self) -> None:
        pass


class _OnDisk(SpooledTemporaryFile[bytes]):
    """The same for a large body."""

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
