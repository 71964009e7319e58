"""Scenarios of keys outside the database: the memory backend and Redis."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_idempotency import Operation, arun_once, idempotent, run_once
from django_idempotency.engine.conf import backend_for
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.stores.values import name_of
from django_idempotency.exceptions import OperationInProgress
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.scenarios import Problems, Scenario
from tests.interrupts.strikes.views import request

KINDS = ("memory", "redis")
LEASE = 60
RUNS: Counter[str] = Counter()
"""How often the work of each key has run to its end."""
ANSWERED: dict[str, Any] = {}


class Refused(Exception):
    """The work's own error."""


def publish(key: str) -> dict[str, Any]:
    RUNS[key] += 1
    return {"key": key, "run": RUNS[key]}


def once(work: Callable[[Operation], Any], key: str, backend: str, **options: Any) -> Any:
    return run_once(work, scope="s", key=key, operation="publish", backend=backend, lease=LEASE, **options).value


def run(key: str, backend: str, **options: Any) -> Any:
    return once(lambda operation: publish(key), key, backend, **options)


async def arun(key: str, backend: str) -> Any:
    async def work(operation: Operation) -> dict[str, Any]:
        return publish(key)

    options: Any = {"operation": "publish", "backend": backend, "lease": LEASE}
    return (await arun_once(work, scope="s", key=key, **options)).value


def view(key: str, backend: str) -> Any:
    @idempotent(operation="publish", scope=lambda request: "s", backend=backend, lease=LEASE)
    def publishing(request: HttpRequest) -> HttpResponse:
        return JsonResponse(publish(key))

    return json.loads(publishing(request(key)).content)


def refer(key: str, backend: str) -> Any:
    def work(operation: Operation) -> Any:
        operation.refer_to("event", "1")
        operation.renew()
        return publish(key)

    return once(work, key, backend)


def refuse(key: str, backend: str) -> Any:
    def work(operation: Operation) -> Any:
        raise Refused

    return once(work, key, backend)


def claimed(key: str, backend: str) -> None:
    """Another worker has the claim, as long as its own work lasts."""
    name = name_of(identify(scope="s", operation="publish", key=key))

    def work(operation: Operation) -> Any:
        CLAIMS[key] = backend_for(backend).swap(name, None, None, 0)
        raise Refused

    try:
        once(work, key, backend)
    except Refused:
        backend_for(backend).swap(name, None, CLAIMS[key], LEASE)


CLAIMS: dict[str, Any] = {}


def lapse(key: str, backend: str) -> None:
    """The claim's lease runs out, if it has one."""
    name = name_of(identify(scope="s", operation="publish", key=key))
    store = backend_for(backend)
    store.swap(name, store.swap(name, None, None, 0), None, 0)


def forget_claim(key: str, backend: str) -> None:
    if key in CLAIMS:
        lapse(key, backend)


def stored(backend: str, key: str, run: Run) -> Problems:
    """What was answered is what a retry gets; a claim that was left waits for its lease."""
    if run.error is None:
        ANSWERED[key] = run.value
        if RUNS[key] != 1:
            yield f"acknowledged after {RUNS[key]} runs"


def again(key: str, backend: str, act: Callable[[str, str], Any] = run) -> Any:
    try:
        value = act(key, backend)
    except OperationInProgress:
        value = None
    if value is None or value.get("code"):  # a view answers a conflict with a problem
        lapse(key, backend)
        value = act(key, backend)
    RETRIED[key] = value


RETRIED: dict[str, Any] = {}


def one_answer(backend: str, key: str, act: Callable[[str, str], Any] = run) -> Problems:
    if RETRIED[key] != ANSWERED.get(key, RETRIED[key]):
        yield f"answered {ANSWERED[key]}, and the retry got {RETRIED[key]}"
    if act(key, backend) != RETRIED[key]:
        yield "two retries got two answers"


def scenario(backend: str, act: Callable[[str, str], Any], **more: Any) -> Scenario:
    return Scenario(
        act=partial(act, backend=backend),
        retry=partial(again, backend=backend),
        after=partial(stored, backend),
        end=partial(one_answer, backend),
        **{name: partial(value, backend=backend) if callable(value) else value for name, value in more.items()},
    )


def view_scenario(backend: str, act: Callable[[str, str], Any], **more: Any) -> Scenario:
    """The retry is a request to the view, too."""
    made = scenario(backend, act, **more)
    return replace(made, retry=partial(again, backend=backend, act=act), end=partial(one_answer, backend, act=act))


def scenarios(backend: str) -> dict[str, Scenario]:
    return {
        "first request": scenario(backend, run),
        "replay": scenario(backend, run, prepare=run),
        "conflict": scenario(backend, run, prepare=claimed, let_go=forget_claim, expected=(OperationInProgress,)),
        "waiting": scenario(
            backend, partial(run, wait=0.02), prepare=claimed, let_go=forget_claim, expected=(OperationInProgress,)
        ),
        "a view that raises": scenario(backend, refuse, expected=(Refused,)),
        "refer and renew": scenario(backend, refer),
        "async run_once": scenario(backend, async_to_sync(arun)),
        "view": view_scenario(backend, view),
        "view, replay": view_scenario(backend, view, prepare=view),
    }
