"""Results as text. Those of steps are in test_operation.py."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from django_idempotency import (
    Result,
    ResultNotStorable,
    run_once,
)
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.works import RUNS, place

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


@pytest.mark.parametrize(
    ("value", "kept"), [(None, None), ([1, "a"], [1, "a"]), ({"a": (Decimal("1.10"),)}, {"a": ["1.10"]})]
)
def test_values_are_json(value: Any, kept: Any) -> None:
    """The first caller sees what the later ones will."""
    answers = [run_once(lambda: value, scope="s", key="k", operation="o") for _ in range(2)]
    assert [answer.value for answer in answers] == [kept, kept]


def test_an_instance_is_handed_on_as_it_is() -> None:
    """The first caller gets the work's own, with whatever it has been given besides its fields."""
    order = Order.objects.create()
    assert run_once(lambda: order, scope="s", key="k", operation="o").value is order


def test_a_result_that_cannot_be_kept_rolls_back() -> None:
    """Else a redelivery would have nothing to return."""

    def work() -> object:
        Order.objects.create()
        return object()

    with pytest.raises(ResultNotStorable):
        run_once(work, scope="s", key="k", operation="o")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_what_a_person_closed_it_with_is_its_value() -> None:
    """Any text that is not a result of ours."""
    run_once(place, scope="s", key="k")
    for body, value in ((b"refunded by hand", "refunded by hand"), (b"\xff", "\ufffd"), (None, "")):
        IdempotencyKey.objects.update(body=body)
        assert run_once(place, scope="s", key="k") == Result(value, replayed=True)


@pytest.mark.django_db(databases=["default", "other"])
def test_an_instance_is_fetched_from_its_own_database() -> None:
    """Where another database has another object under the same number."""
    Order.objects.create(pk=7, reference="not this one")

    def work() -> Order:
        return Order.objects.using("other").create(pk=7, reference="this one")

    answers = [run_once(work, scope="s", key="k", operation="o") for _ in range(2)]
    assert [(answer.value.reference, answer.replayed) for answer in answers] == [
        ("this one", False),
        ("this one", True),
    ]
