"""Orders: one transaction. Duplicates, hang-ups and kill -9."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import httpx

from shop.demo.stage import (
    DEADLINE,
    PAUSE,
    Row,
    at_once,
    compared,
    is_replay_of,
    paused_in_the_middle,
    statuses,
    until_final,
)
from shop.models import Order
from shop.pause import HEADER

STORM = 50
LOSERS_DEADLINE = 5
"""Seconds for duplicates to get their responses, which takes milliseconds."""


def storm(client: httpx.Client, path: str, what: str, *, token: str | None = None) -> Row:
    """Send all at once. The one that runs is paused until the others have their responses."""
    headers = {"Idempotency-Key": str(uuid4()), **({"Authorization": f"Token {token}"} if token else {})}
    pausing = {**headers, HEADER: str(PAUSE)}
    with counting() as orders:
        with ThreadPoolExecutor(STORM) as pool:
            with paused_in_the_middle():
                sent = [pool.submit(post, client, path, pausing) for _ in range(STORM)]
                wait_for_losers(sent)
            responses = [future.result(DEADLINE) for future in sent]
        retries = at_once(STORM, lambda: post(client, path, headers))
    winners = [response for response in responses if response.status_code == 201]
    losers = [response for response in responses if response.status_code == 409]
    same = len(winners) == 1 and all(is_replay_of(winners[0], retry) for retry in retries)
    return Row(
        f"{STORM} duplicates, {what}",
        f"{statuses(responses)}; retries: {compared(same)}",
        orders_text(orders()),
        "1 order",
        same and len(losers) == STORM - 1,
    )


def hang_up(client: httpx.Client, url: str) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders:
        with paused_in_the_middle() as worker:
            line = send_and_keep_open(url, {**headers, "Content-Type": "application/json", HEADER: str(PAUSE)})
            worker()
            line.close()
        retries = [until_final(lambda: post(client, "/orders/", headers)) for _ in range(2)]
    same = all(retry.status_code == 201 and is_replay_of(retries[0], retry) for retry in retries)
    responses = f"first not read; retries: {compared(same)}"
    return Row("client hangs up, then retries", responses, orders_text(orders()), "1 order", same)


def kill(client: httpx.Client) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders, ThreadPoolExecutor(1) as pool:
        with paused_in_the_middle() as worker:
            lost = pool.submit(post, client, "/orders/", {**headers, HEADER: str(PAUSE)})
            os.kill(worker(), signal.SIGKILL)
            died = isinstance(lost.exception(DEADLINE), httpx.TransportError)
        left = orders()
        retry = until_final(lambda: post(client, "/orders/", headers))
    ran = retry.status_code == 201 and retry.headers.get("Idempotency-Replayed") == "false"
    return Row(
        "kill -9 during the view, retry",
        f"{'lost' if died else 'NOT LOST'}, {left} orders left; retry: {statuses([retry])}",
        orders_text(orders()),
        "1 order",
        died and ran and left == 0,
    )


def unprotected(client: httpx.Client) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders:
        responses = at_once(STORM, lambda: post(client, "/unprotected/orders/", headers))
    what = f"{STORM} duplicates, NOT protected"
    return Row(what, statuses(responses), orders_text(orders()), orders_text(STORM), True)


def post(client: httpx.Client, path: str, headers: dict[str, str]) -> httpx.Response:
    return client.post(path, json={"item": "a book", "quantity": 1}, headers=headers)


def wait_for_losers(sent: list[Future[httpx.Response]]) -> None:
    """Wait until all but one have their response. Without protection they never do, and the table shows that."""
    deadline = time.monotonic() + LOSERS_DEADLINE
    while sum(future.done() for future in sent) < STORM - 1 and time.monotonic() < deadline:
        time.sleep(0.02)


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many orders were created since."""
    before = Order.objects.count()
    yield lambda: Order.objects.count() - before


def orders_text(count: int) -> str:
    return f"{count} order" if count == 1 else f"{count} orders"


def send_and_keep_open(url: str, headers: dict[str, str]) -> socket.socket:
    """Send a request on a bare socket and do not read the response."""
    target = httpx.URL(url)
    body = b'{"item":"a book","quantity":1}'
    lines = [f"Host: {target.host}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    line = socket.create_connection((target.host, target.port or 80), timeout=DEADLINE)
    line.sendall("\r\n".join(["POST /orders/ HTTP/1.1", *lines, "", ""]).encode() + body)
    return line
