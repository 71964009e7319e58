"""What a request may cost in memory, parsing and imports. Time is in the benchmarks."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse

from django_idempotency import idempotent
from django_idempotency.engine.request import fingerprints

MEGABYTE = 1024 * 1024
pytestmark = pytest.mark.django_db


class Endless(io.RawIOBase):
    """A body as it comes from a socket: never in memory as a whole."""

    def __init__(self, head: bytes, size: int, tail: bytes) -> None:
        self.head, self.left, self.tail = head, size, tail

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert 0 <= size <= MEGABYTE, "asked for all of it at once"
        if self.head:
            data, self.head = self.head[:size], self.head[size:]
        elif self.left:
            data = b"x" * min(size, self.left)
            self.left -= len(data)
        else:
            data, self.tail = self.tail[:size], self.tail[size:]
        return data


def upload(content_type: str, head: bytes = b"", tail: bytes = b"", size: int = 100 * MEGABYTE) -> WSGIRequest:
    return WSGIRequest(
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/upload",
            "CONTENT_TYPE": content_type,
            "CONTENT_LENGTH": str(len(head) + size + len(tail)),
            "HTTP_IDEMPOTENCY_KEY": str(uuid4()),
            "SERVER_NAME": "testserver",
            "SERVER_PORT": "80",
            "wsgi.input": Endless(head, size, tail),
        }
    )


def part(boundary: str) -> tuple[bytes, bytes]:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="f"; filename="f.bin"\r\n\r\n'
    return head.encode(), f"\r\n--{boundary}--\r\n".encode()


@pytest.fixture
def peak() -> Iterator[Any]:
    """Bytes that Python has held at most since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["bytes", "form"])
def test_a_large_upload_is_never_held_as_a_whole(peak: Any, kind: str) -> None:
    """100 MB: the file of a form is hashed in pieces. A view that reads the raw stream says what is compared."""
    sizes = []

    @idempotent(fingerprint="request" if kind == "form" else None)
    def receive(request: HttpRequest) -> HttpResponse:
        if kind == "form":
            sizes.append(request.FILES["f"].size)
        else:
            sizes.append(sum(len(chunk) for chunk in iter(lambda: request.read(MEGABYTE), b"")))
        return HttpResponse("kept", status=201)

    request = upload("application/octet-stream")
    if kind == "form":
        request = upload("multipart/form-data; boundary=b", *part("b"))
    assert receive(request).status_code == 201
    assert sizes == [100 * MEGABYTE]
    assert peak() < 10 * MEGABYTE
    request.close()


@pytest.mark.parametrize(("items", "times"), [(1_000, 1), (10_000, 0)])
def test_json_is_parsed_once_at_most(monkeypatch: pytest.MonkeyPatch, items: int, times: int) -> None:
    """Beside the view's own parsing. A megabyte is not parsed."""
    parsed = []
    decode = fingerprints._DECODER.decode

    def counting(text: str) -> Any:
        parsed.append(len(text))
        return decode(text)

    @idempotent
    def receive(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(len(request.body)), status=201)

    body = json.dumps({"items": ["x" * 100] * items}).encode()
    monkeypatch.setattr(fingerprints._DECODER, "decode", counting)
    assert receive(upload("application/json", body, size=0)).content == str(len(body)).encode()
    assert parsed == [len(body)] * times


def test_nothing_is_imported_that_is_not_used() -> None:
    """A plain project on SQLite gets no framework, no driver, no metrics and no admin with the decorator."""
    script = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_idempotency"], ROOT_URLCONF="none", SECRET_KEY="s",
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.core.management import call_command
from django.test import RequestFactory
from django_idempotency import idempotent
call_command("migrate", verbosity=0)
from django.http import HttpResponse
def answer(request):
    return HttpResponse(status=201)
view = idempotent(operation="o")(answer)
view(RequestFactory().post("/", headers={"Idempotency-Key": "k"}, content_type="application/json"))
unwanted = ("rest_framework", "drf_spectacular", "ninja", "prometheus_client", "psycopg", "MySQLdb",
            "django.contrib.admin", "django_idempotency.admin", "django_idempotency.testing",
            "django_idempotency.rest_framework", "django_idempotency.ninja", "django_idempotency.metrics")
print([name for name in unwanted if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
