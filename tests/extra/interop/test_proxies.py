"""Proxies that repeat a POST to the next server: one order, and the bytes of the answer that was lost."""

from __future__ import annotations

import os

import httpx
import pytest

from tests.extra.interop.faults import answers, arrivals, digest
from tests.extra.interop.proxies import program, proxy
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order

pytestmark = [
    pytest.mark.skipif("INTEROP" not in os.environ, reason="NOT RUN: other people's programs, tox run -e interop"),
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(params=["nginx", "haproxy"])
def name(request: pytest.FixtureRequest) -> str:
    if program(request.param) is None:
        pytest.skip(f"NOT RUN: no {request.param} here")
    return str(request.param)


def send(client: httpx.Client, path: str, key: str, fault: str) -> httpx.Response:
    return client.post(path, json={"item": "a book"}, headers={"Idempotency-Key": key, "X-Fault": fault})


@pytest.mark.parametrize("fault", ["lost", "503"])
def test_the_repeat_gets_the_lost_answer(servers: list[str], name: str, fault: str, key: str) -> None:
    """The first server commits and dies, or answers 503. The client gets 201 and knows nothing of it."""
    with proxy(name, servers, timeout=DEADLINE) as client:
        told = send(client, "/protected", key, fault)
    assert (told.status_code, told.headers["Idempotency-Replayed"]) == (201, "true")
    assert answers(key) == [(201, digest(told.content))] * 2
    assert Order.objects.filter(reference=key).count() == 1


def test_without_protection_it_is_a_second_order(servers: list[str], name: str, key: str) -> None:
    """So the proxy does repeat the request."""
    with proxy(name, servers, timeout=DEADLINE) as client:
        told = send(client, "/unprotected", key, "lost")
    (first, lost), (second, final) = answers(key)
    assert (told.status_code, first, second, final) == (201, 201, 201, digest(told.content))
    assert lost != final
    assert Order.objects.filter(reference=key).count() == 2


def test_a_timeout_while_the_first_is_running(servers: list[str], name: str, key: str) -> None:
    """The proxy's repeat meets 409, the client sends until it gets 201: one order, and the bytes of the first."""
    with proxy(name, servers, timeout=1) as client:
        send(client, "/protected", key, "running")
        eventually("the proxy's repeat to arrive", lambda: arrivals(key) > 1)

        def again() -> httpx.Response | None:
            answer = send(client, "/protected", key, "running")
            return answer if answer.status_code == 201 else None

        final: httpx.Response = eventually("201", again)
    eventually("all requests to be answered", lambda: len(answers(key)) == arrivals(key))
    (conflict, _), *_ = told_by_servers = answers(key)
    assert conflict == 409
    assert {found for status, found in told_by_servers if status == 201} == {digest(final.content)}
    assert Order.objects.filter(reference=key).count() == 1
