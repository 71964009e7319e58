"""Clients that retry until they have an answer, the server they talk to, and the person they turn to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

pytest.importorskip("rest_framework")
from django.db import connection

from django_idempotency.maintenance.resolution import record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE, eventually, gunicorn

AT_ONCE = 4
COLUMNS = "status", "attempt", "locked_until", "unknown", "effects", "attention_at", "created_at", "updated_at"
"""Of the row of a client that waited in vain."""


@contextmanager
def serving(*, plain: bool = False, **environment: str) -> Iterator[httpx.Client]:
    workers = ("--workers", str(AT_ONCE))
    headers = {"X-Plain": "1"} if plain else {}
    with (
        gunicorn(*workers, SERVER_BOUNDARIES="1", **environment) as url,
        httpx.Client(base_url=url, timeout=DEADLINE, headers=headers) as client,
    ):
        yield client


def knowing(gateway: httpx.Client, old_gateway: httpx.Client) -> dict[str, str]:
    """What the server has to know: a gateway that honours keys, and one for /hold that does not."""
    return {"GATEWAY": str(gateway.base_url).rstrip("/"), "OLD_GATEWAY": str(old_gateway.base_url).rstrip("/")}


class Retrying:
    """A client that sends one request until it has a final answer, as clients should."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self.client, self.path, self.key = client, path, str(uuid4())
        self.failures = self.attempts = 0
        self.heard = "nothing"
        """The last answer, or why there was none."""

    def send(self, **headers: str) -> httpx.Response:
        self.attempts += 1
        always = {"Idempotency-Key": self.key, "X-Reference": self.key}
        return self.client.post(self.path, json={"a": 1}, headers={**always, **headers})

    def boundaries(self) -> int:
        answer = self.send()
        assert answer.status_code == 201
        return int(answer.headers["X-Boundaries"])

    def killed_at(self, number: int) -> None:
        with pytest.raises(httpx.TransportError):
            self.send(**{"X-Kill-At": str(number)})

    def until_final(self, unknown: Callable[[], None] | None = None) -> httpx.Response:
        def attempt() -> httpx.Response | None:
            try:
                answer = self.send()
            except httpx.TransportError as error:
                self.failures += 1
                self.heard = repr(error)
                return None
            self.heard = f"{answer.status_code} {answer.text[:500]}"
            if unknown and "unknown" in answer.text:
                unknown()
            self.failures += answer.status_code >= 500
            return None if answer.status_code == 409 or answer.status_code >= 500 else answer

        try:
            answer: httpx.Response = eventually("a final answer", attempt, pause=0.1)
        except AssertionError as error:
            rows = IdempotencyKey.objects.filter(key=self.key).values(*COLUMNS)
            error.add_note(f"{self.path}, {self.failures} failures, the last answer: {self.heard}\nrow: {list(rows)}")
            raise
        return answer


def at_every_boundary(client: httpx.Client, path: str, check: Callable[[Retrying], None]) -> int:
    """Kill and check once at each; returns how many there were."""
    boundaries = Retrying(client, path).boundaries()

    def one(number: int) -> None:
        retrying = Retrying(client, path)
        retrying.killed_at(number)
        check(retrying)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(one, number) for number in range(1, boundaries + 1)]:
            future.result(2 * DEADLINE)
    return boundaries


def look_into_the_books(gateway: httpx.Client, key: str) -> str:
    """What a person does about a call in doubt: record it if the gateway has it, else let it be made."""
    row = IdempotencyKey.objects.get(key=key)
    (step,) = row.steps.filter(finished_at=None)
    found = gateway.get("/charges", params={"reference": f"{step.name} {key}"}).json()["charges"]
    try:
        if found:
            record_outcome(row, step.name, found[0]["id"])
            return "recorded"
        release_for_retry(row)
        return "released"
    finally:
        connection.close()  # of the thread that asks


def recover_to_the_end(client: httpx.Client) -> None:
    """Run the recovery command, as cron does, until no key is left that is not completed."""

    def settled() -> bool:
        try:
            status = client.post("/recover").json()["status"]
        except (httpx.TransportError, ValueError):  # killed, or an error page
            return False
        finally:
            connection.close()
        return status == 0 and not IdempotencyKey.objects.exclude(status="completed").exists()

    eventually("every key to be settled", settled)
