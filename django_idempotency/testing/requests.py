"""This module sends the requests of a test to an endpoint.

A test can repeat a request, change the body of a request, or send a request several times at the same time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

from django.core.files.base import ContentFile
from django.db import connections
from django.test import Client

from ..engine.conf import get_settings
from ..models import IdempotencyKey

QUOTED_CHARACTERS = 300
"""An error message shows at most this number of characters of a body."""
START_TIMEOUT = 60
"""Seconds after which a test fails if some of its threads cannot start, for example without a free connection."""


class Reply:
    """A `Reply` object contains the response of the endpoint that is tested.

    The attribute `replayed` has the value of the header `Idempotency-Replayed`: True or False. If the response does not
    have this header, the attribute is None.
    """

    def __init__(self, response: Any) -> None:
        self.response, self.status = response, response.status_code
        streaming = getattr(response, "streaming", False)
        self.body = b"".join(response.streaming_content) if streaming else bytes(response.content)
        self.replayed = {"true": True, "false": False}.get(response.headers.get(get_settings().replayed_header))

    @property
    def is_conflict(self) -> bool:
        """Return True if the response says that the first request is still running.

        Such a response has the status 409, 429 or 202. If the status is 202, the JSON body must also contain the state
        of the first request.
        """
        if self.status == 202 and "Retry-After" in self.response.headers:
            return str(self._json_field("status")) in IdempotencyKey.Status.values
        return self.status in (409, 429)

    @property
    def is_mismatch(self) -> bool:
        """Return whether the endpoint has refused the key, because the key was used for a different request."""
        return str(self._json_field("title")) == "Idempotency-Key is already used"

    def _json_field(self, name: str) -> Any:
        try:
            return json.loads(self.body)[name]
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """Describe the response. Error messages contain this description."""
        name = get_settings().replayed_header
        replayed = f"without {name}" if self.replayed is None else f"with {name}: {str(self.replayed).lower()}"
        location = f", Location: {self.response.headers['Location']}" if "Location" in self.response.headers else ""
        body = self.body.decode(errors="replace")
        cut = "…" if len(body) > QUOTED_CHARACTERS else ""
        return f"{self.status} {replayed}{location}, {body[:QUOTED_CHARACTERS]!r}{cut}"


@dataclass(slots=True, kw_only=True)
class Request:
    """A test can send a `Request` object many times, with the same key or with different keys.

    The function `with_key` receives a key as its argument, and returns arguments for `client.post`. The returned
    arguments contain the key. If the attribute `alters_body` is True, the method `send` changes the body of the
    request. For example, the method adds a field to the body.
    """

    client: Any
    method: str
    path: str
    data: Any
    extra: Mapping[str, Any]
    with_key: Callable[[str], Mapping[str, Any]]
    alters_body: bool = False

    def __post_init__(self) -> None:
        self.data = with_files_read(self.data)

    def send(self, key: str | None, *, client: Any = None) -> Reply:
        """Send the request, and return the reply. If the argument `client` is given, this client sends the request.

        The cookies of the client do not change.
        """
        carried = {} if key is None else self.with_key(key)
        headers = {**self.extra.get("headers", {}), **carried.get("headers", {})}
        arguments = {**self.extra, **carried, "data": self._body(carried.get("data")), "headers": headers or None}
        send = getattr(_copy(client or self.client), self.method.lower())
        return Reply(send(self.path, **{name: value for name, value in arguments.items() if value is not None}))

    def _body(self, carried: Any) -> Any:
        """Return the body of the request.

        The key is in one part of the body. The argument `carried` is this part. This part is either a dict with some
        fields of the body, or the whole body.
        """
        data = copy.deepcopy(self.data)  # a client reads a file to its end, so each request needs its own copy
        if carried is None or (isinstance(carried, dict) and isinstance(data, dict | None)):
            body = data if carried is None else {**(data or {}), **carried}
            return altered(body) if self.alters_body else body
        if data is not None:
            raise TypeError(f"with_key= gives the data {carried!r}, which cannot be merged with {data!r}. Use dicts.")
        return altered(carried) if self.alters_body else carried


def without_credentials(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for `client.post` without the headers that identify a caller."""
    named = {name.lower() for name in ("Cookie", *get_settings().credential_headers)}
    kept = {name: value for name, value in extra.get("headers", {}).items() if name.lower() not in named}
    environ = {f"HTTP_{name.upper().replace('-', '_')}" for name in named}
    return {**{name: value for name, value in extra.items() if name not in environ}, "headers": kept}


def key_in_header(key: str) -> Mapping[str, Any]:
    """Return arguments for `client.post` that put the key into a header of the request.

    The key is written in quotes, because the package always accepts a quoted key.
    """
    return {"headers": {get_settings().header: f'"{key}"'}}


def send_at_once(request: Request, key: str, count: int, alias: str) -> list[Reply]:
    """Send the same request from several threads at the same time, and return the replies.

    Each thread has its own database connection.
    """
    barrier = Barrier(count, timeout=START_TIMEOUT)

    def send(client: Any) -> Reply:
        try:
            # Opening a connection takes longer than sending a request. So each thread first opens its connection, and
            # then waits until all threads have a connection.
            connections[alias].ensure_connection()
            barrier.wait()
            return request.send(key, client=client)
        except BaseException:
            barrier.abort()
            raise
        finally:
            connections.close_all()

    clients = [_copy(request.client, raises=False) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(send, client) for client in clients]]


def _copy(client: Any, *, raises: bool = True) -> Any:
    """Return a copy of a Django client. The copy has its own cookies.

    If the client is not an instance of `django.test.Client`, the function returns the client itself.

    In a test, a retry must send the same cookies as the first request. A real client sends a retry because the first
    response was lost. So a real client does not know the new cookies of the first response.

    With `raises=False`, the copy does not raise the exceptions of views. With `raises=True`, a client also raises the
    exceptions of requests in other threads.
    """
    if not isinstance(client, Client):
        return client
    copied = copy.copy(client)
    copied.cookies = copy.deepcopy(client.cookies)
    copied.raise_request_exception = client.raise_request_exception and raises
    return copied


# --- bodies --------------------------------------------------------------------------------------------------------


def with_files_read(data: Any) -> Any:
    """The data can contain files. Load all these files into memory, and return a copy of the data in which the loaded
    files replace the original files. Only a file in memory can be copied.
    """
    if isinstance(data, dict):
        return {name: with_files_read(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_files_read(value) for value in data]
    if not callable(getattr(data, "read", None)):
        return data
    data.seek(0)
    file: Any = ContentFile(data.read(), name=getattr(data, "name", None))
    if content_type := getattr(data, "content_type", None):
        file.content_type = content_type
    return file


def altered(data: Any) -> Any:
    """Return a copy of the data with one change. For example, the copy has one more field."""
    match data:
        case None | dict():
            return {**(data or {}), "altered": "1"}
        case list():
            return [*data, "1"]
        case bytes():
            return altered(data.decode("latin-1")).encode("latin-1")
    try:
        return json.dumps(altered(json.loads(data)))
    except (TypeError, ValueError):
        return f"{data}1"
