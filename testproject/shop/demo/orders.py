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
    bytes_said,
    held_in_the_middle,
    is_replay_of,
    tally,
    until_final,
)
from shop.models import Order
from shop.pause import HEADER

STORM = 50
LOSERS_DEADLINE = 5
"""Seconds for duplicates to get their answers, which takes milliseconds."""


def storm(client: httpx.Client, path: str, what: str, *, token: str | None = None) -> Row:
    """All at once; the winner is held in the middle of its work until the losers have their answers."""
    headers = {"Idempotency-Key": str(uuid4()), **({"Authorization": f"Token {token}"} if token else {})}
    held = {**headers, HEADER: str(PAUSE)}
    with counting() as orders:
        with ThreadPoolExecutor(STORM) as pool:
            with held_in_the_middle():
                sent = [pool.submit(post, client, path, held) for _ in range(STORM)]
                losers_answered(sent)
            answers = [future.result(DEADLINE) for future in sent]
        retries = at_once(STORM, lambda: post(client, path, headers))
    winners = [answer for answer in answers if answer.status_code == 201]
    losers = [answer for answer in answers if answer.status_code == 409]
    same = len(winners) == 1 and all(is_replay_of(winners[0], retry) for retry in retries)
    return Row(
        f"{STORM} duplicates at once, {what}",
        f"{tally(answers)}; {STORM} retries: {tally(retries)}, {bytes_said(same)}",
        told(orders()),
        "1 order",
        same and len(losers) == STORM - 1,
    )


def hang_up(client: httpx.Client, url: str) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders:
        with held_in_the_middle() as worker:
            line = send_and_keep_open(url, {**headers, "Content-Type": "application/json", HEADER: str(PAUSE)})
            worker()
            line.close()
        retries = [until_final(lambda: post(client, "/orders/", headers)) for _ in range(2)]
    same = all(retry.status_code == 201 and is_replay_of(retries[0], retry) for retry in retries)
    answers = f"nobody reads the first; 2 retries: {tally(retries)}, {bytes_said(same)}"
    return Row("client hangs up before the answer, retries", answers, told(orders()), "1 order", same)


def kill(client: httpx.Client) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders, ThreadPoolExecutor(1) as pool:
        with held_in_the_middle() as worker:
            lost = pool.submit(post, client, "/orders/", {**headers, HEADER: str(PAUSE)})
            os.kill(worker(), signal.SIGKILL)
            died = isinstance(lost.exception(DEADLINE), httpx.TransportError)
        left = orders()
        answer = until_final(lambda: post(client, "/orders/", headers))
    ran = answer.status_code == 201 and answer.headers.get("Idempotency-Replayed") == "false"
    return Row(
        "kill -9 of the worker in the middle, retry",
        f"{'connection lost' if died else 'answered'}, {left} orders left; retry: {tally([answer])}",
        told(orders()),
        "1 order",
        died and ran and left == 0,
    )


def unprotected(client: httpx.Client) -> Row:
    headers = {"Idempotency-Key": str(uuid4())}
    with counting() as orders:
        answers = at_once(STORM, lambda: post(client, "/unprotected/orders/", headers))
    return Row(f"{STORM} duplicates at once, NOT protected", tally(answers), told(orders()), told(STORM), True)


def post(client: httpx.Client, path: str, headers: dict[str, str]) -> httpx.Response:
    return client.post(path, json={"item": "a book", "quantity": 1}, headers=headers)


def losers_answered(sent: list[Future[httpx.Response]]) -> None:
    """Wait until all but one have their answer; without protection they never do, and the table tells."""
    deadline = time.monotonic() + LOSERS_DEADLINE
    while sum(future.done() for future in sent) < STORM - 1 and time.monotonic() < deadline:
        time.sleep(0.02)


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How many orders came to be since."""
    before = Order.objects.count()
    yield lambda: Order.objects.count() - before


def told(count: int) -> str:
    return f"{count} order" if count == 1 else f"{count} orders"


def send_and_keep_open(url: str, headers: dict[str, str]) -> socket.socket:
    """Send a request on a bare socket and do not read the answer."""
    target = httpx.URL(url)
    body = b'{"item":"a book","quantity":1}'
    lines = [f"Host: {target.host}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    line = socket.create_connection((target.host, target.port or 80), timeout=DEADLINE)
    line.sendall("\r\n".join(["POST /orders/ HTTP/1.1", *lines, "", ""]).encode() + body)
    return line
