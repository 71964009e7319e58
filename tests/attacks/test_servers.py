"""The same attacks as bytes on a socket: what a real server makes of them before Django sees them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("rest_framework")

from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE, eventually, gunicorn, http_post, uvicorn
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
SERVERS = {"gunicorn": lambda: gunicorn("--workers", "1"), "uvicorn": uvicorn}
KEY = b"Idempotency-Key: a"
HOSTILE = [
    KEY + b"\r\n" + KEY,
    KEY + b", b",
    KEY + b"\r\n Set-Cookie: x=1",
    KEY + b"\rSet-Cookie: x=1",
    b'Idempotency-Key: "a\x00b"',
    b"Idempotency-Key: \xff\xfe",
    b"Idempotency-Key : a",
    b"Idempotency_Key: a",
    b"Idempotency-Key:",
    b"Idempotency-Key: " + b"a" * 256,
    b"Idempotency-Key: " + b"a" * 100_000,
]
MB = 1024 * 1024
JSON, FORM = b"application/json", b"multipart/form-data; boundary=x"
A_FORM = b'--x\r\nContent-Disposition: form-data; name="amount"\r\n\r\n100\r\n--x--\r\n'


@pytest.fixture(params=SERVERS, scope="module")
def url(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), SERVERS[request.param]() as url:
        yield url


def send(url: str, line: bytes, body: bytes = b"{}", length: int = 2, kind: bytes = JSON) -> tuple[int, str]:
    """Status and headers; 0 if the server has hung up instead."""
    where = urlsplit(url)
    with socket.create_connection((str(where.hostname), where.port or 80), timeout=DEADLINE) as connection:
        try:
            connection.sendall(b"POST /plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\n" % kind)
            connection.sendall(line + b"\r\nContent-Length: %d\r\n\r\n" % length + body)
            if len(body) < length:
                connection.shutdown(socket.SHUT_WR)
            answer = HTTPResponse(connection)
            answer.begin()
        except OSError:
            return 0, ""
        with answer:
            return answer.status, str(answer.headers).lower()


def test_a_hostile_header_is_refused_by_the_server_or_by_us(url: str) -> None:
    """And makes no header of an answer, no row and no order."""
    for line in HOSTILE:
        status, headers = send(url, line)
        assert status in (0, 400, 431), line
        assert "set-cookie" not in headers
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert send(url, KEY)[0] == 201


@pytest.mark.parametrize(("kind", "body"), [(JSON, b'{"amount":1}'), (FORM, A_FORM)], ids=["json", "form"])
def test_an_upload_that_is_cut_off_uses_up_no_key(url: str, kind: bytes, body: bytes) -> None:
    """The client sends a part and no more; then all of it."""
    assert send(url, KEY, body[:-3], len(body), kind)[0] in (0, 400)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert send(url, KEY, body, len(body), kind)[0] == 201


def test_a_chunked_body_is_compared_or_refused(url: str) -> None:
    """WSGI does not show it, and any two would look the same: 411. An ASGI server hands it over."""

    def chunked(content: bytes) -> int:
        return http_post(f"{url}/plain", headers={"Idempotency-Key": "a"}, content=iter([content])).status_code

    statuses = [chunked(content) for content in (b"one", b"one", b"two")]
    assert statuses == ([411] * 3 if IdempotencyKey.objects.count() == 0 else [201, 201, 422])
    assert Order.objects.count() == statuses.count(201) // 2


def test_c31_no_header_makes_one_caller_another(url: str) -> None:
    """One key, and Alice's name wherever it is not looked for: each caller gets what is their own."""
    callers: list[dict[str, str]] = [
        {"X-Api-Key": "alice"},
        {"X-Api-Key": "bob"},
        {"X-Api-Key": "bob", "X_Api_Key": "alice"},
        {"X-Forwarded-User": "alice", "Remote-User": "alice", "X-Forwarded-For": "alice"},
        {"Cookie": "sessionid=alice"},
        {"Authorization": "Bearer alice"},
        {"Authorization": "Bearer alice", "X-Api-Key": "bob"},
    ]
    ids = []
    for caller in callers:
        answers = [http_post(f"{url}/plain", headers={"Idempotency-Key": "a", **caller}) for _ in range(2)]
        assert answers[1].headers["Idempotency-Replayed"] == "true"
        assert answers[0].content == answers[1].content
        ids.append(answers[0].json()["id"])
    # A server may drop a header with an underscore; then the third is Bob.
    assert len({*ids[:2], *ids[3:]}) == len(callers) - 1
    assert ids[2] not in {ids[0], *ids[3:]}


@pytest.mark.parametrize("server", SERVERS)
def test_a_large_upload_is_neither_kept_in_memory_nor_left_on_disk(server: str) -> None:
    """64 MB for a view that reads nothing: the worker stays small, and closes the file when it has answered.

    A form is read and compared; a raw body that Django does not hold in memory is 413, and claims nothing.
    The server is new: what an earlier test had made large could grow no more.
    """
    with SERVERS[server]() as url:
        _upload(url)


def _upload(url: str) -> None:
    assert http_post(f"{url}/plain", headers={"Idempotency-Key": "before"}).status_code == 201
    worker = int(Order.objects.get().reference)
    before, files = peak(worker), open_files(worker)
    assert http_post(f"{url}/plain", headers={"Idempotency-Key": "raw"}, content=bytes(64 * MB)).status_code == 413
    form = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n%s\r\n--x--\r\n' % bytes(64 * MB)
    large = {"Idempotency-Key": "large", "Content-Type": "multipart/form-data; boundary=x"}
    assert http_post(f"{url}/plain", headers=large, content=form).status_code == 201
    assert not IdempotencyKey.objects.filter(key="raw").exists()
    assert peak(worker) - before < 16
    eventually("the upload's file to be closed", lambda: open_files(worker) <= files)


def peak(process: int) -> float:
    """Megabytes that it has used at most."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(kilobytes) / 1024


def open_files(process: int) -> set[str]:
    folder = f"/proc/{process}/fd"
    names = set()
    for number in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed since it was listed
            names.add(os.readlink(f"{folder}/{number}"))
    return {name for name in names if not name.startswith(("socket:", "pipe:"))}
