"""During a deployment, old code calls version 1 of the functions, and new code calls version 2, on one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec
from threading import Barrier
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted
from django_idempotency.engine.stores import Store, functions, postgresql_functions, store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim
from tests.functions import going, migration, sql
from tests.shopapp.models import Order
from tests.tap import tapped

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Threads = Callable[..., list[Any]]
DIRECTIONS = [("old", "new"), ("new", "old")]
CALLS = {"old": "idempotency_claim_1(", "new": "idempotency_claim_2("}
ANSWER = Completed(snapshot=SNAPSHOT, resource=("order", "7"))


def _next(value: Any) -> Any:
    """The same with the names of the next version."""
    if isinstance(value, list | tuple):
        return type(value)(map(_next, value))
    if not isinstance(value, str):
        return value
    return value.replace("idempotency_claim_1", "idempotency_claim_2").replace(
        "idempotency_complete_1", "idempotency_complete_2"
    )


def _of_the_next_release(name: str) -> Any:
    """A second copy of a module of ours, which has the names of version 2."""
    spec: Any = find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for constant in [constant for constant in vars(module) if constant.isupper()]:
        setattr(module, constant, _next(getattr(module, constant)))
    return module


@pytest.fixture
def releases() -> Iterator[dict[str, Store]]:
    """Old code and new code, after the migration of the new one."""
    sql(*(_next(text).replace("{schema}", "public") for text in (migration.CLAIM, migration.COMPLETE)))
    module = _of_the_next_release(postgresql_functions.__name__)
    module.functions = _of_the_next_release(functions.__name__)
    try:
        with going("functions"):
            yield {"old": store_for("default"), "new": module.PostgreSQLFunctionsStore("default")}
    finally:
        sql(*(f"DROP FUNCTION {_next(signature)}" for signature in migration.SIGNATURES))


@pytest.fixture
def drop_version_1() -> Iterator[Callable[[], None]]:
    """As a later release does when no old code runs any more, but too early."""
    yield lambda: sql(*(f"DROP FUNCTION {signature}" for signature in migration.SIGNATURES))
    with connection.schema_editor() as editor:
        migration.drop(None, editor)
        migration.create(None, editor)


def request_of(store: Store, *work: Callable[[], Any], key: str = "8e03978e") -> ClaimOutcome:
    """Claim, work, make an order and complete in one transaction, as a request in atomic mode does."""
    with transaction.atomic():
        outcome = store.claim(a_claim(key=key))
        if isinstance(outcome, Claimed):
            for step in work:
                step()
            Order.objects.create(reference=key)
            store.complete(outcome, SNAPSHOT, resource=("order", "7"), last=True)
    return outcome


@pytest.mark.parametrize(("first", "second"), DIRECTIONS)
def test_what_one_has_completed_the_other_replays(releases: dict[str, Store], first: str, second: str) -> None:
    """Each by its own version of the functions."""
    with tapped() as tap:
        assert isinstance(request_of(releases[first]), Claimed)
        sent = "".join(tap.take())
        assert (CALLS[first] in sent, CALLS[second] in sent) == (True, False)
        assert _completion(CALLS[first]) in sent
        assert request_of(releases[second]) == ANSWER
        assert CALLS[second] in "".join(tap.take())
    assert Order.objects.count() == 1


def _completion(claim: str) -> str:
    return claim.replace("claim", "complete")


@pytest.mark.parametrize(("first", "second"), DIRECTIONS)
def test_what_one_is_running_the_other_does_not_begin(
    releases: dict[str, Store], in_threads: Threads, first: str, second: str
) -> None:
    """Both take the same lock."""
    met: list[ClaimOutcome] = []
    assert isinstance(
        request_of(releases[first], lambda: met.extend(in_threads(1, lambda _: request_of(releases[second])))), Claimed
    )
    assert (met, Order.objects.count()) == ([Conflicted()], 1)
    assert request_of(releases[second]) == ANSWER


def test_of_both_at_once_one_wins(releases: dict[str, Store], in_threads: Threads) -> None:
    """Four of each, ten keys: one effect for each key, and the others are told to wait or get the answer."""
    barrier = Barrier(8, timeout=60)

    def work(number: int) -> list[ClaimOutcome]:
        store = list(releases.values())[number % 2]
        outcomes = []
        for key in range(10):
            barrier.wait()
            outcomes.append(request_of(store, key=str(key)))
        return outcomes

    for of_one_key in zip(*in_threads(8, work), strict=True):
        (winner,) = [outcome for outcome in of_one_key if isinstance(outcome, Claimed)]
        assert all(outcome in (Conflicted(), ANSWER) for outcome in of_one_key if outcome is not winner)
    assert sorted(Order.objects.values_list("reference", flat=True)) == list("0123456789")
    assert {type(request_of(store, key="0")) for store in releases.values()} == {Completed}


@pytest.mark.parametrize("when", ["before the claim", "before the completion"])
def test_old_code_goes_on_when_version_1_is_dropped_too_early(
    releases: dict[str, Store],
    in_threads: Threads,
    drop_version_1: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    """By statements, in the same request. One record tells of it, and new code notices nothing."""
    request_of(releases["old"], key="looks for the functions")

    def drop() -> None:
        in_threads(1, lambda _: drop_version_1())

    if when == "before the claim":
        drop()
        assert isinstance(request_of(releases["old"]), Claimed)
    else:
        assert isinstance(request_of(releases["old"], drop), Claimed)
    assert isinstance(request_of(releases["old"], key="another"), Claimed)
    assert [request_of(releases[release]) for release in ("old", "new")] == [ANSWER, ANSWER]
    assert Order.objects.count() == IdempotencyKey.objects.filter(status="completed").count() == 3
    (record,) = caplog.records
    assert "go on without the functions" in record.getMessage()
    with tapped() as tap:
        assert isinstance(request_of(releases["new"], key="new"), Claimed)
        assert CALLS["new"] in "".join(tap.take())


def test_version_1_is_dropped_under_load(
    releases: dict[str, Store], in_threads: Threads, drop_version_1: Callable[[], None]
) -> None:
    """Old code and new code both run all the time. Each request has its one effect."""
    barrier = Barrier(5, timeout=60)

    def work(number: int) -> list[ClaimOutcome]:
        store = list(releases.values())[number % 2]
        if number < 4:
            request_of(store, key=f"{number}-first")
        barrier.wait()
        if number == 4:
            drop_version_1()
            return []
        return [request_of(store, key=f"{number}-{n}") for n in range(20)]

    outcomes = [outcome for thread in in_threads(5, work) for outcome in thread]
    assert [type(outcome) for outcome in outcomes] == [Claimed] * 80
    assert (Order.objects.count(), IdempotencyKey.objects.filter(status="completed").count()) == (84, 84)
