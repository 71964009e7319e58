"""What a protected view answers: counted, and in the mode `twice` compared with the answer to a retry."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import wraps
from io import BytesIO
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.handlers.asgi import ASGIRequest
from django.test.client import FakePayload

MODE = os.environ.get("FRAMEWORKS_MODE", "once")
"""`bare`: nothing is protected. `once`: every view is. `twice`: so is every view, and each request is sent again."""
FIGURES: Counter[str] = Counter()
"""For the report."""
NOT_FINAL = {401, 403, 408, 412, 423, 425, 429}
"""And all from 500. The default of the option `record`: nothing to replay."""
OF_THE_BODY = {"_body", "_encoding", "_files", "_post", "_read_started", "_stream", "_upload_handlers", "close"}
"""What a request knows of its body, and a retry learns anew from its own."""
NOT_REPLAYED = {"connection", "idempotency-replayed", "keep-alive", "set-cookie", "transfer-encoding", "upgrade"}
"""Headers that the documentation excludes, and the header that tells a replay."""

View = Callable[..., Any]


def watched(view: View) -> View:
    """The protected view, watched."""
    if iscoroutinefunction(view):

        @wraps(view)
        async def aobserved(request: Any, *args: Any, **kwargs: Any) -> Any:
            again = _retry_of(request)
            response = await view(request, *args, **kwargs)
            if _counts(response) and again is not None:
                _compare(response, await view(again, *args, **kwargs))
            return response

        return aobserved

    @wraps(view)
    def observed(request: Any, *args: Any, **kwargs: Any) -> Any:
        again = _retry_of(request)
        response = view(request, *args, **kwargs)
        if _counts(response) and again is not None:
            _compare(response, view(again, *args, **kwargs))
        return response

    return observed


def _counts(response: Any) -> bool:
    """Has the view run under a key, and is its answer kept? What is kept has been rendered."""
    if "Idempotency-Replayed" not in getattr(response, "headers", {}):
        return False
    if not getattr(response, "is_rendered", True):  # such as of a body that cannot be parsed
        FIGURES["refused before the view"] += 1
        return False
    FIGURES["requests under a key"] += 1
    final = response.status_code < 500 and response.status_code not in NOT_FINAL
    FIGURES["answers that are not final"] += not final
    return final


def _retry_of(request: Any) -> Any:
    """The same request as the middleware handed it on, with a body of its own. None if no retry is wanted."""
    if MODE != "twice" or "HTTP_IDEMPOTENCY_KEY" not in request.META:
        return None
    payload = _payload(request)
    if payload is None:
        FIGURES["not sent again: no test client's body"] += 1
        return None
    if isinstance(request, ASGIRequest):
        again: Any = type(request)(request.scope, BytesIO(payload))
        again.META.update(request.META)  # with what middleware has put there, such as the CSRF secret
    else:
        again = type(request)({**request.META, "wsgi.input": FakePayload(payload)})
    kept = vars(request).keys() - OF_THE_BODY - {"environ", "META"}
    vars(again).update({name: vars(request)[name] for name in kept})
    return again


def _payload(request: Any) -> bytes | None:
    """The bytes that a test client has sent, whatever has been read of them."""
    stream = request.environ["wsgi.input"] if hasattr(request, "environ") else request._stream
    while stream is not None and not isinstance(stream, FakePayload):
        stream = getattr(getattr(stream, "_read", None), "__self__", None)  # of Django's LimitedStream
    return None if stream is None else stream._FakePayload__content.getvalue()


def _compare(first: Any, second: Any) -> None:
    if first.streaming:  # is not stored, and so answered by a problem
        FIGURES["tombstones"] += 1
        same = second.status_code == 409
    else:
        FIGURES["replays compared"] += 1
        same = _parts(first) == _parts(second) and second.headers["Idempotency-Replayed"] == "true"
    if not same:
        FIGURES["replays that differ"] += 1
        raise AssertionError(f"the replay differs: {_parts(first)!r}, {_parts(second)!r}")


def _parts(response: Any) -> tuple[Any, ...]:
    headers = {name.lower(): value for name, value in response.headers.items() if name.lower() not in NOT_REPLAYED}
    return response.status_code, response.reason_phrase, headers, response.content
