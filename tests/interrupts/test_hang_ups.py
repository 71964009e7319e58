"""Clients that close the connection while their request is at work, and come back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("rest_framework")

from tests.servers import DEADLINE, eventually, gunicorn, holding, http_post, uvicorn
from tests.shopapp.models import Ledger, Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Server = Callable[[], AbstractContextManager[str]]


SERVERS: dict[str, Server] = {"uvicorn": uvicorn, "gunicorn": lambda: gunicorn("--workers", "2")}


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), SERVERS[request.param]() as url:
        yield url


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/plain", "before the write"),
        ("/plain", "before COMMIT"),
        ("/leased", "in the call"),
        ("/leased", "before the write"),
        ("/leased", "before COMMIT"),
    ],
)
def test_a_synchronous_view_goes_on_to_its_end(url: str, key: str, path: str, place: str) -> None:
    """A server cannot stop its thread. The retry meets it, and then gets its response: one order, one charge."""
    where = urlsplit(url)
    with holding() as worker:
        with socket.create_connection((str(where.hostname), where.port or 80), timeout=DEADLINE) as connection:
            lines = f"POST {path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nX-Pause: {place}\r\n"
            connection.sendall(f"{lines}Content-Length: 0\r\n\r\n".encode())
            worker()
        assert http_post(f"{url}{path}", headers={"Idempotency-Key": key}).status_code == 409

    def retry() -> httpx.Response | None:
        answer = http_post(f"{url}{path}", headers={"Idempotency-Key": key})
        return None if answer.status_code == 409 else answer

    answer: httpx.Response = eventually("a final answer", retry)
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (201, "true")
    assert Order.objects.get().pk == answer.json()["id"]
    assert Ledger.objects.count() == (path == "/leased")
