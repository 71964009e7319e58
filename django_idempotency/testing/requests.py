"""Requests to the endpoint under test: send the same one often, with another body, or several at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

from django.core.files.base import ContentFile
from django.db import connections
from django.test import Client

from ..engine.conf import get_settings
from ..models import IdempotencyKey

QUOTED_CHARACTERS = 300
"""How much of a body a message quotes."""
START_TIMEOUT = 60
"""Seconds after which a test fails if its threads cannot all start, for example for want of connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response, and what its `Idempotency-Replayed` header says: None if the response has no such header."""

    response: Any
    status: int
    body: bytes
    replayed: bool | None

    @classmethod
    def of(cls, response: Any) -> Reply:
        streaming = getattr(response, "streaming", False)
        return cls(
            response=response,
            status=response.status_code,
            body=b"".join(response.streaming_content) if streaming else bytes(response.content),
            replayed={"true": True, "false": False}.get(response.headers.get(get_settings().replayed_header)),
        )

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 400

    @property
    def is_conflict(self) -> bool:
        """Whether it says that the first request still runs: 409, 429, or 202 and the status page."""
        if self.status == 202 and "Retry-After" in self.response.headers:
            return str(self._json_field("status")) in IdempotencyKey.Status.values
        return self.status in (409, 429)

    @property
    def is_mismatch(self) -> bool:
        """Whether it is the package's own error for a key that was used for another request."""
        return str(self._json_field("title")) == "Idempotency-Key is already used"

    @property
    def exception(self) -> BaseException | None:
        """What the view raised, if Django's test client turned the exception into a 500."""
        exc_info = getattr(self.response, "exc_info", None)
        return exc_info[1] if exc_info else None

    def _json_field(self, name: str) -> Any:
        try:
            return json.loads(self.body)[name]
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """Return the text that messages quote."""
        name = get_settings().replayed_header
        replayed = f"without {name}" if self.replayed is None else f"with {name}: {str(self.replayed).lower()}"
        location = f", Location: {self.response.headers['Location']}" if "Location" in self.response.headers else ""
        body = self.body.decode(errors="replace")
        cut = "…" if len(body) > QUOTED_CHARACTERS else ""
        return f"{self.status} {replayed}{location}, {body[:QUOTED_CHARACTERS]!r}{cut}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that can be sent many times, under any key.

    key_arguments: `callable(key)` that returns the arguments of `client.post` that carry the key.
    """

    client: Any
    method: str
    path: str
    data: Any
    extra: Mapping[str, Any]
    key_arguments: Callable[[str], Mapping[str, Any]]

    def send(self, key: str | None, *, client: Any = None) -> Reply:
        """Send it once, by another client if one is given. The client's cookies stay as they are."""
        for_key = dict(self.key_arguments(key)) if key is not None else {}
        arguments = {**self.extra, **for_key}
        if headers := {**self.extra.get("headers", {}), **for_key.get("headers", {})}:
            arguments["headers"] = headers
        data = _with_fields(_with_files_opened(self.data), arguments.pop("data", None))
        if data is not None:
            arguments["data"] = data
        send = getattr(_copy(client or self.client), self.method.lower())
        return Reply.of(send(self.path, **arguments))

    def with_body(self, data: Any) -> Request:
        return replace(self, data=with_files_read(data))

    def with_altered_body(self) -> Request:
        return replace(self, data=_altered(self.data))


def key_in_header(key: str) -> Mapping[str, Any]:
    """Return the arguments that carry a key by default: in the header, in quotes, which are always accepted."""
    return {"headers": {get_settings().header: f'"{key}"'}}


def send_at_once(request: Request, key: str, count: int, alias: str) -> list[Reply]:
    """Send the same request `count` times at once, each from a thread of its own with a connection of its own."""
    barrier = Barrier(count, timeout=START_TIMEOUT)

    def send(client: Any) -> Reply:
        try:
            connections[alias].ensure_connection()  # before the start, because connecting takes longer than the race
            barrier.wait()
            return request.send(key, client=client)
        except BaseException:
            barrier.abort()
            raise
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(send, _copy_for_thread(request.client)) for _ in range(count)]
        return [future.result() for future in futures]


def _copy(client: Any) -> Any:
    """Return a copy of a Django client with its own cookies; another client as it is.

    A retry must carry the cookies of the first request, because its response was lost.
    """
    if not isinstance(client, Client):
        return client
    copied = copy.copy(client)
    copied.cookies = copy.deepcopy(client.cookies)
    return copied


def _copy_for_thread(client: Any) -> Any:
    """Return a copy that turns an exception of the view into a 500.

    Otherwise Django's test client raises the exception of any request in the process, so also of another thread's.
    """
    copied = _copy(client)
    if isinstance(client, Client):
        copied.raise_request_exception = False
    return copied


@dataclass(frozen=True, slots=True)
class _File:
    name: str | None
    content_type: str | None
    content: Any

    @classmethod
    def of(cls, file: Any) -> _File:
        file.seek(0)
        return cls(getattr(file, "name", None), getattr(file, "content_type", None), file.read())

    def open(self) -> Any:
        file: Any = ContentFile(self.content, name=self.name)
        if self.content_type is not None:
            file.content_type = self.content_type
        return file


def with_files_read(data: Any) -> Any:
    """Return the data with the content of its files, which a test client reads only once: a retry would be empty."""
    if isinstance(data, dict):
        return {name: with_files_read(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_files_read(value) for value in data]
    return _File.of(data) if callable(getattr(data, "read", None)) else data


def _with_files_opened(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _with_files_opened(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_with_files_opened(value) for value in data]
    return data.open() if isinstance(data, _File) else data


def _with_fields(data: Any, fields: Mapping[str, Any] | None) -> Any:
    """Return the body with the fields that carry the key."""
    if fields is None:
        return data
    if not isinstance(data, dict | None):
        raise TypeError(f"with_key= gives body fields, so data must be a dict of fields too, not {data!r}.")
    return {**(data or {}), **fields}


def _altered(data: Any) -> Any:
    """Return the data with every value altered, so that any field that the endpoint compares has changed."""
    if data is None or data in ({}, []):
        return {"altered": "1"}
    match data:
        case dict():
            return {name: _altered(value) for name, value in data.items()}
        case list():
            return [_altered(value) for value in data]
        case bool():
            return not data
        case int() | float():
            return data + 1
        case _File():
            more = "1" if isinstance(data.content, str) else b"1"
            return replace(data, content=data.content + more)
        case bytes():
            return _altered_text(data.decode("latin-1")).encode("latin-1")
    return _altered_text(str(data))


def _altered_text(text: str) -> str:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text + "1"
    return json.dumps(_altered(parsed))
