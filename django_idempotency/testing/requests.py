"""Requests to the endpoint under test: send the same one often, with another body, or several at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Barrier
from typing import Any

from django.core.files.base import ContentFile
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections
from django.test import Client

from ..engine.conf import get_settings
from ..models import IdempotencyKey

QUOTED_CHARACTERS = 300
"""How much of a body a message quotes."""
JSON = "application/json"
"""The content type of bodies that are sent as bytes, unless the test gives another."""
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

    key_arguments: `callable(key)` that returns the arguments of `client.post` that carry the key, or the whole body.
    sign: `callable(body, key)` that returns headers for these bytes.
    alters_body: whether all values of the body are altered, except the key.
    """

    client: Any
    method: str
    path: str
    data: Any
    extra: Mapping[str, Any]
    key_arguments: Callable[[str], Mapping[str, Any] | bytes]
    sign: Callable[[bytes, str], Mapping[str, str]] | None = None
    alters_body: bool = False

    def send(self, key: str | None, *, client: Any = None) -> Reply:
        """Send it once, by another client if one is given. The client's cookies stay as they are."""
        for_key, data = {} if key is None else self.key_arguments(key), self.data
        if isinstance(for_key, bytes):
            if data is not None:
                raise TypeError(f"with_key= gives the whole body, so leave data out. It is {data!r}.")
            for_key, data = {"content_type": self.extra.get("content_type", JSON)}, for_key
        if self.alters_body:
            data = _altered(data, key)
        arguments = {**self.extra, **for_key}
        headers = {**self.extra.get("headers", {}), **for_key.get("headers", {})}
        data = _each(data, lambda value: value() if isinstance(value, partial) else value)
        data = _with_fields(data, arguments.pop("data", None))
        if self.sign is not None:
            data = _as_bytes(data)
            arguments.setdefault("content_type", JSON)
            headers |= {} if key is None else self.sign(data, key)
        if headers:
            arguments["headers"] = headers
        if data is not None:
            arguments["data"] = data
        send = getattr(_copy(client or self.client), self.method.lower())
        return Reply.of(send(self.path, **arguments))

    def with_body(self, data: Any) -> Request:
        """The same with other data. A function gives the whole body, as `key_arguments` may."""
        return replace(self, key_arguments=data) if callable(data) else replace(self, data=with_files_read(data))


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

    clients = [_copy(request.client) for _ in range(count)]
    for client in clients:
        if isinstance(client, Client):
            # Otherwise it raises the exception of any request in the process, so of other threads, too.
            client.raise_request_exception = False
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(send, client) for client in clients]]


def _copy(client: Any) -> Any:
    """Return a copy of a Django client with its own cookies; another client as it is.

    A retry must carry the cookies of the first request, because its response was lost.
    """
    if not isinstance(client, Client):
        return client
    copied = copy.copy(client)
    copied.cookies = copy.deepcopy(client.cookies)
    return copied


# --- bodies --------------------------------------------------------------------------------------------------------


def with_files_read(data: Any) -> Any:
    """Return the data with a function in place of each file. A test client reads a file once: a retry would be empty.

    The function makes the file anew.
    """
    return _each(data, _read)


def _each(data: Any, change: Callable[[Any], Any]) -> Any:
    """The data with each value changed, but no object and no list."""
    if isinstance(data, dict):
        return {name: _each(value, change) for name, value in data.items()}
    return [_each(value, change) for value in data] if isinstance(data, (list, tuple)) else change(data)


def _read(value: Any) -> Any:
    if not callable(getattr(value, "read", None)):
        return value
    value.seek(0)
    return partial(_file, value.read(), getattr(value, "name", None), getattr(value, "content_type", None))


def _file(content: Any, name: str | None, content_type: str | None) -> Any:
    file: Any = ContentFile(content, name=name)
    if content_type is not None:
        file.content_type = content_type
    return file


def _with_fields(data: Any, fields: Mapping[str, Any] | None) -> Any:
    """Return the body with the fields that carry the key."""
    if fields is None:
        return data
    if not isinstance(data, dict | None):
        raise TypeError(f"with_key= gives body fields, so data must be a dict of fields too, not {data!r}.")
    return {**(data or {}), **fields}


def _as_bytes(data: Any) -> bytes:
    """Return the body as a signature needs it: bytes and text as they are, all else as JSON."""
    if data is None:
        return b""
    if isinstance(data, bytes):
        return data
    return (data if isinstance(data, str) else json.dumps(data, cls=DjangoJSONEncoder)).encode()


def _altered(data: Any, keep: str | None) -> Any:
    """Return the data with every value altered, so that any field that the endpoint compares has changed.

    keep: the key. Texts that contain the key stay as they are.
    """
    if data is None or data in ({}, []):
        return {"altered": "1"}
    match data:
        case dict():
            return {name: _altered(value, keep) for name, value in data.items()}
        case list():
            return [_altered(value, keep) for value in data]
        case bool():
            return not data
        case int() | float():
            return data + 1
        case partial():
            content, *rest = data.args
            return partial(_file, content + ("1" if isinstance(content, str) else b"1"), *rest)
        case bytes():
            return _altered_text(data.decode("latin-1"), keep).encode("latin-1")
    return _altered_text(str(data), keep)


def _altered_text(text: str, keep: str | None) -> str:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text if keep is not None and keep in text else text + "1"
    return json.dumps(_altered(parsed, keep))
