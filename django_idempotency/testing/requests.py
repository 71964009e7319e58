"""Send requests from a test: repeat one, change its body, or send several at the same time."""

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
"""The maximum number of characters of a body that an error message quotes."""
START_TIMEOUT = 60
"""Seconds after which a test fails if some threads cannot start, for example because no connection is free."""


class Reply:
    """The endpoint's response. `replayed` is the value of `Idempotency-Replayed`, or None without that header."""

    def __init__(self, response: Any) -> None:
        self.response, self.status = response, response.status_code
        streaming = getattr(response, "streaming", False)
        self.body = b"".join(response.streaming_content) if streaming else bytes(response.content)
        self.replayed = {"true": True, "false": False}.get(response.headers.get(get_settings().replayed_header))

    @property
    def is_conflict(self) -> bool:
        """Whether the response means that the first request is still running.

        Its status is then 409 or 429, or 202 with the first request's state as JSON.
        """
        if self.status == 202 and "Retry-After" in self.response.headers:
            return str(self._json_field("status")) in IdempotencyKey.Status.values
        return self.status in (409, 429)

    @property
    def is_mismatch(self) -> bool:
        """Whether the key was refused because it was used for a different request."""
        return str(self._json_field("title")) == "Idempotency-Key is already used"

    @property
    def is_not_stored(self) -> bool:
        """Whether the request was processed before, but its response was not stored.

        In a project's own error format, such a response looks like any other 409.
        """
        code = self._json_field("code")
        in_own_format = get_settings().error_response is not None and not self.is_mismatch
        return self.status == 409 and (code == "response-not-stored" or in_own_format)

    def _json_field(self, name: str) -> Any:
        try:
            return json.loads(self.body)[name]
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """The reply, as shown in error messages."""
        name = get_settings().replayed_header
        replayed = f"without {name}" if self.replayed is None else f"with {name}: {str(self.replayed).lower()}"
        location = f", Location: {self.response.headers['Location']}" if "Location" in self.response.headers else ""
        body = self.body.decode(errors="replace")
        cut = "…" if len(body) > QUOTED_CHARACTERS else ""
        return f"{self.status} {replayed}{location}, {body[:QUOTED_CHARACTERS]!r}{cut}"


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that can be sent many times, under one key or several.

    `with_key` takes a key and returns the arguments to `client.post` that send it. With `alters_body`, `send` changes
    the body, for example by adding a field.
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
        """Send the request with `client`, by default the request's own client. The client's cookies do not change."""
        carried = {} if key is None else self.with_key(key)
        headers = {**self.extra.get("headers", {}), **carried.get("headers", {})}
        arguments = {**self.extra, **carried, "data": self._body(carried.get("data")), "headers": headers or None}
        send = getattr(_copy(client or self.client), self.method.lower())
        return Reply(send(self.path, **{name: value for name, value in arguments.items() if value is not None}))

    def _body(self, carried: Any) -> Any:
        """The body, merged with `carried` (the data from `with_key`, which is either some fields or a whole body)."""
        data = copy.deepcopy(self.data)  # a client reads files to the end
        if carried is None or (isinstance(carried, dict) and isinstance(data, dict | None)):
            body = data if carried is None else {**(data or {}), **carried}
            return altered(body) if self.alters_body else body
        if data is not None:
            raise TypeError(
                f"with_key= returned the data {carried!r}, which cannot be merged with {data!r}. Use dicts."
            )
        return altered(carried) if self.alters_body else carried


def without_credentials(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments to `client.post` without the headers that identify a caller."""
    named = {name.lower() for name in ("Cookie", *get_settings().credential_headers)}
    headers = {name: value for name, value in extra.get("headers", {}).items() if name.lower() not in named}
    environ = {f"HTTP_{name.upper().replace('-', '_')}" for name in named}
    return {**{name: value for name, value in extra.items() if name not in environ}, "headers": headers}


def key_in_header(key: str) -> Mapping[str, Any]:
    """The arguments to `client.post` that send the key in a header. A key in quotes is always accepted."""
    return {"headers": {get_settings().header: f'"{key}"'}}


def send_at_once(request: Request, key: str, count: int, alias: str) -> list[Reply]:
    """Send the same request from several threads at the same time, each with its own connection."""
    barrier = Barrier(count, timeout=START_TIMEOUT)

    def send(client: Any) -> Reply:
        try:
            # Connecting takes longer than sending, so all threads connect before the first one sends.
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
    """Copy a Django client with its cookies. Other clients are returned as they are.

    A retry must send the same cookies as the first request, because a real client that retries has received neither the
    first response nor its cookies. A Django client also raises the exceptions of views that run in other threads. With
    `raises=False`, the copy raises no exceptions of views.
    """
    if not isinstance(client, Client):
        return client
    copied = copy.copy(client)
    copied.cookies = copy.deepcopy(client.cookies)
    copied.raise_request_exception = client.raise_request_exception and raises
    return copied


# --- bodies --------------------------------------------------------------------------------------------------------


def with_files_read(data: Any) -> Any:
    """Replace files with in-memory copies, because only those can be copied for each request."""
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
    """Copy the data with one change, such as an added field."""
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
