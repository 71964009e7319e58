"""Storms on real server processes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("rest_framework")

from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE, eventually, gunicorn, holding, http_post
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
SYNC = ("--workers", "4")
THREADS = ("--workers", "2", "--threads", "25", "--worker-class", "gthread")


def at_once(count: int, url: str, key: str, **headers: str) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(timeout=DEADLINE, limits=limits) as client, ThreadPoolExecutor(min(count, 100)) as pool:
        sent = {"json": {"a": 1}, "headers": {"Idempotency-Key": key, **headers}}
        return list(pool.map(lambda _: client.post(url, **sent), range(count)))


def test_two_header_fields_are_refused(key: str) -> None:
    """On the wire, not as a test client would send them."""
    with gunicorn(*SYNC) as url:
        for one, two in ((key, key), (f'"{key}"', f'"{key}"'), (key, "")):
            headers = [("Idempotency-Key", one), ("Idempotency-Key", two)]
            assert http_post(f"{url}/plain", json={}, headers=headers).status_code == 400
    assert not Order.objects.exists()


def test_a_client_that_hangs_up_gets_its_answer_later(key: str) -> None:
    """The work goes on without it; the retry gets the same order."""
    headers = {"Idempotency-Key": key}
    with gunicorn(*SYNC) as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
        with holding() as worker:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/plain", json={"a": 1}, headers={**headers, "X-Pause": "before COMMIT"}, timeout=0.5)
            worker()

        def retry() -> httpx.Response | None:
            answer = client.post("/plain", json={"a": 1}, headers=headers)
            return None if answer.status_code == 409 else answer

        answer: httpx.Response = eventually("a final answer", retry)
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (201, "true")
    assert Order.objects.count() == 1


@pytest.mark.parametrize("path", ["/plain", "/rest"])
def test_a_client_that_hangs_up_in_mid_upload_claims_nothing(key: str, path: str) -> None:
    """The worker gets a truncated body that looks complete; the retry in full is the first request."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n"
    with gunicorn(*SYNC) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port or 80), timeout=DEADLINE) as connection:
            connection.sendall(f"{head}Content-Length: 8\r\n\r\n{{}}".encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(12) == b"HTTP/1.1 400"
        assert not IdempotencyKey.objects.exists()
        (answer,) = at_once(1, url + path, key)
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (201, "false")
    assert Order.objects.count() == 1
