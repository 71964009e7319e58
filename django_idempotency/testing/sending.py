"""One request, sent as often as a test needs it, as by a client that never got an answer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.core.files.base import ContentFile
from django.test import AsyncClient, Client

from ..engine.conf import settings
from ..models import IdempotencyKey

SHOWN = 300
"""Characters of a body that a message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. `replayed`: what its Idempotency-Replayed header says, if it has one."""

    response: Any
    status: int
    body: bytes
    replayed: bool | None

    @classmethod
    def of(cls, response: Any) -> Answer:
        streaming = getattr(response, "streaming", False)
        return cls(
            response=response,
            status=response.status_code,
            body=b"".join(response.streaming_content) if streaming else bytes(response.content),
            replayed={"true": True, "false": False}.get(response.headers.get(settings().replayed_header)),
        )

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 400

    @property
    def is_conflict(self) -> bool:
        """Was a duplicate told that the first request still runs: 409, 429, or 202 and the status page?"""
        if self.status == 202 and "Retry-After" in self.response.headers:
            return str(self._value("status")) in IdempotencyKey.Status.values
        return self.status in (409, 429)

    @property
    def is_reuse(self) -> bool:
        """Is it the package's own answer to a key that was used for another request?"""
        return str(self._value("title")) == "Idempotency-Key is already used"

    @property
    def raised(self) -> BaseException | None:
        """What the view raised, where Django's test client turned that into a 500."""
        exc_info = getattr(self.response, "exc_info", None)
        return exc_info[1] if exc_info else None

    def _value(self, name: str) -> Any:
        try:
            return json.loads(self.body)[name]
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """As a message quotes it."""
        name = settings().replayed_header
        mark = f"without {name}" if self.replayed is None else f"with {name}: {str(self.replayed).lower()}"
        to = f", Location: {self.response.headers['Location']}" if "Location" in self.response.headers else ""
        body = self.body.decode(errors="replace")
        return f"{self.status} {mark}{to}, {body[:SHOWN]!r}{'…' if len(body) > SHOWN else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent under a key.

    carry: `callable(key)` that returns the arguments of `client.post` that carry a key.
    """

    client: Any
    method: str
    path: str
    data: Any
    extra: Mapping[str, Any]
    carry: Callable[[str], Mapping[str, Any]]

    def send(self, key: str | None, *, client: Any = None) -> Answer:
        """Send it once, by another client if one is given. The client's cookies stay as they were."""
        carried = dict(self.carry(key)) if key is not None else {}
        arguments = {**self.extra, **carried}
        if headers := {**self.extra.get("headers", {}), **carried.get("headers", {})}:
            arguments["headers"] = headers
        data = _with_fields(_fresh(self.data), arguments.pop("data", None))
        if data is not None:
            arguments["data"] = data
        send = getattr(_twin(client or self.client), self.method.lower())
        return Answer.of(send(self.path, **arguments))

    def altered(self, data: Any = None) -> Request:
        """The same with another body: the one that is given, else its own with every value altered."""
        return replace(self, data=keep(data) if data is not None else _altered(self.data))


def header(key: str) -> Mapping[str, Any]:
    """How a key is carried by default, in quotes: that form is always accepted."""
    return {"headers": {settings().header: f'"{key}"'}}


def refuse_async(client: Any) -> None:
    if isinstance(client, AsyncClient):
        raise TypeError("assert_idempotent needs django.test.Client, which tests asynchronous views too.")


def quiet(client: Any) -> Any:
    """A copy for a thread of its own, which answers 500 where the view raises.

    Django's test client raises what any request in the process has raised, so also another thread's exception.
    """
    twin = _twin(client)
    if isinstance(client, Client):
        twin.raise_request_exception = False
    return twin


def keep(data: Any) -> Any:
    """The data with its files read: a test client reads a file to its end, and would send an empty one next time."""
    if isinstance(data, dict):
        return {name: keep(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [keep(value) for value in data]
    return _File.of(data) if callable(getattr(data, "read", None)) else data


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


def _fresh(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _fresh(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_fresh(value) for value in data]
    return data.open() if isinstance(data, _File) else data


def _with_fields(data: Any, fields: Mapping[str, Any] | None) -> Any:
    """The body with the fields that carry the key."""
    if fields is None:
        return data
    if not isinstance(data, dict | None):
        raise TypeError(f"with_key= gives body fields, so data must be a dict of fields too, not {data!r}.")
    return {**(data or {}), **fields}


def _altered(data: Any) -> Any:
    """Every value another one, of its kind where that is easy: whatever the endpoint compares has changed."""
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


def _twin(client: Any) -> Any:
    """A copy of a Django client with cookies of its own: a retry carries those of the request whose answer was lost.

    Other clients are used as they are.
    """
    if not isinstance(client, Client):
        return client
    twin = copy.copy(client)
    twin.cookies = copy.deepcopy(client.cookies)
    return twin
