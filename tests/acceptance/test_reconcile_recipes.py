"""The two recipes of docs/interrupted.md for `reconcile`: a killed worker, duplicates at once, a client who returns.

One gateway honours keys, and the other one charges at each call.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_idempotency.keys import derived_key
from django_idempotency.maintenance import needs_attention, recover_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.acceptance.killed import Gateway
from tests.leases import lapse
from tests.servers import DEADLINE, running

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
KEYED, CAREFUL = "shop/keyed.py", "shop/careful.py"
Killed = Callable[..., Gateway]


@pytest.fixture
def killed(run: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killed:
    """A worker of this recipe is killed before or after the charge, and its lease expires."""

    def kill(recipe: str, when: str) -> Gateway:
        gateway = Gateway(tmp_path / "book")
        sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
        serve(path("pay/", run("docs/interrupted.md", recipe).pay))
        with running("tests.acceptance.killed", "docs/interrupted.md", recipe, str(gateway.book), when) as worker:
            assert worker.wait(DEADLINE) == -9
        assert len(gateway.charges()) == (when == "after")
        assert {code(sent()) for _ in range(3)} == {(409, "in-progress")}
        lapse()
        return gateway

    return kill


def sent() -> Any:
    return Client(raise_request_exception=False).post("/pay/", headers={"Idempotency-Key": "one"})


def code(answer: Any) -> tuple[int, Any]:
    return answer.status_code, answer.json().get("code")


def age(**how: int) -> None:
    IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(**how))


def at_once(in_threads: Callable[..., list[Any]]) -> Counter[tuple[int, Any]]:
    """Five duplicates; those that meet the one at work get a conflict."""
    return Counter(code(answer) for answer in in_threads(5, lambda number: sent()))


def is_settled(gateway: Gateway) -> bool:
    """One charge, and each later retry is a replay."""
    again = sent()
    assert (again.status_code, again.json()["id"], again["Idempotency-Replayed"]) == (201, "ch_1", "true")
    return (len(gateway.charges()), needs_attention().count()) == (1, 0)


@pytest.mark.parametrize("recipe", [KEYED, CAREFUL])
def test_a_charge_that_is_found_is_recorded(killed: Killed, in_threads: Any, recipe: str) -> None:
    """Of duplicates, one gets the view's response, and nobody charges."""
    gateway = killed(recipe, "after")
    answers = at_once(in_threads)
    assert set(answers) <= {(201, None), (409, "in-progress")}
    assert answers[(201, None)] > 0
    assert is_settled(gateway)


def test_a_gateway_that_honours_keys_gets_the_call_again(killed: Killed, in_threads: Any) -> None:
    """Although the first one may still arrive, under the same key."""
    gateway = killed(KEYED, "before")
    answers = at_once(in_threads)
    assert set(answers) <= {(201, None), (409, "in-progress")}
    assert answers[(201, None)] > 0
    assert is_settled(gateway)


def test_one_that_ignores_keys_is_asked_until_the_call_can_no_longer_arrive(killed: Killed, in_threads: Any) -> None:
    """Until then, the client hears that the outcome is unknown; after that, one of the duplicates charges."""
    gateway = killed(CAREFUL, "before")
    for _ in range(2):
        held = sent()
        assert (code(held), held["Retry-After"]) == ((409, "outcome-unknown"), "60")
    assert recover_idempotency_keys(older_than=0).failed == 0
    age(minutes=9)
    answers = at_once(in_threads)
    assert set(answers) <= {(409, "outcome-unknown"), (409, "in-progress")}
    assert gateway.charges() == []
    age(minutes=11)
    answers = at_once(in_threads)
    assert set(answers) <= {(201, None), (409, "in-progress")}
    assert answers[(201, None)] > 0
    assert is_settled(gateway)


def test_a_charge_that_arrives_late_is_no_second_one(killed: Killed) -> None:
    """The gateway lists it only minutes after the worker was killed."""
    gateway = killed(CAREFUL, "before")
    assert code(sent()) == (409, "outcome-unknown")
    key = IdempotencyKey.objects.get()
    gateway.add(derived_key(scope=key.scope, operation=key.operation, key=key.key, step="charge"))
    age(minutes=11)
    assert code(sent()) == (201, None)
    assert is_settled(gateway)


def test_a_repeated_call_that_gets_lost_waits_as_long_again(killed: Killed) -> None:
    """The age of the first start says nothing about the second one, which may still arrive."""
    gateway = killed(CAREFUL, "before")
    age(minutes=11)
    charge, gateway.charge = gateway.charge, timed_out  # type: ignore[method-assign]
    assert sent().status_code == 500
    gateway.charge = charge  # type: ignore[method-assign]
    assert code(sent()) == (409, "outcome-unknown")
    age(minutes=11)
    assert code(sent()) == (201, None)
    assert is_settled(gateway)


def timed_out(*args: Any, **kwargs: Any) -> None:
    raise TimeoutError


def test_a_gateway_that_cannot_be_asked_leaves_the_doubt(killed: Killed) -> None:
    """As a 500, and the next retry asks again."""
    gateway = killed(CAREFUL, "after")
    find, gateway.find = gateway.find, timed_out  # type: ignore[method-assign, assignment]
    assert [sent().status_code for _ in range(2)] == [500, 500]
    gateway.find = find  # type: ignore[method-assign]
    assert code(sent()) == (201, None)
    assert is_settled(gateway)
