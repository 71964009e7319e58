"""`maintenance/earlier.py`: a result that a person has entered, compared with earlier results of the same call.

The docs' view takes `"ch_1"` in place of `{"id": "ch_1"}` for no charge: a paid customer would be told "declined".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_idempotency.maintenance.earlier import earlier_results, shape_of, unlike
from django_idempotency.maintenance.resolution import record_outcome
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import make_key
from tests.shopapp.models import Order
from tests.step_rows import add_step

CHARGED, DECLINED = '{"value": {"id": "ch_1"}}', '{"value": {"declined": true}}'


def paid(key: str, result: Any, **fields: Any) -> IdempotencyKey:
    """A completed key whose call has returned this."""
    row = make_key(key, **fields)
    add_step(row, finished_at=row.created_at, result=result)
    return row


@pytest.mark.parametrize(
    ("entered", "told"),
    [
        ("ch_1", "string"),
        (None, "null"),
        (7, "number"),
        (7.5, "number"),
        (True, "boolean"),
        ([{"id": "ch_1"}], "array"),
        ({}, "object"),
        ({"id": "ch_1", "amount": 5}, "object (amount, id)"),
        ({"ID": "ch_1"}, "object (ID)"),
        ({"n" * 300: 1}, f"object ({'n' * 192}"),
    ],
)
def test_another_shape_is_named(entered: Any, told: str) -> None:
    """Beside those that were seen before. Without the permission to see results, no name of theirs is shown."""
    said = f"earlier results were object (id) / object (declined), and this one is {told}"
    assert unlike(entered, [CHARGED, DECLINED, CHARGED]) == said
    assert unlike(entered, [CHARGED], names=False) == "this result looks different from all earlier ones"


@pytest.mark.parametrize("entered", [{"id": "ch_2"}, {"declined": "card"}])
def test_a_shape_that_was_seen_before_is_accepted(entered: Any) -> None:
    """Whatever the values are."""
    assert unlike(entered, [CHARGED, DECLINED]) == ""


def test_without_earlier_results_nothing_is_compared() -> None:
    """Such as for the first key of a new endpoint."""
    assert unlike("ch_1", []) == ""


@pytest.mark.django_db
def test_a_row_has_the_shape_of_its_model() -> None:
    """A row of another model is another shape."""
    order = Order.objects.create()
    kept = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
    assert (shape_of(kept), unlike(order, [kept])) == (("row", "shopapp.Order"), "")
    assert unlike(order, ['{"model": "shopapp.Payment", "pk": 1, "using": "default"}']) == (
        "earlier results were row (shopapp.Payment), and this one is row (shopapp.Order)"
    )
    assert shape_of("5") == ("row", "")  # changed in the database


@pytest.mark.django_db
def test_compared_are_the_latest_results_of_the_same_call_and_operation() -> None:
    """Of completed keys, newest first: not lost values, not what a person recorded, not what cannot be read."""
    stored = [json.dumps({"value": number}) for number in range(25)]
    for number, result in enumerate(stored):
        paid(f"k-{number}", result)
    paid("other operation", '{"value": "wrong"}', operation="POST refunds/")
    paid("lost", None)
    paid("damaged", "{")
    paid("failed", '{"value": "failed"}', status="failed")
    add_step(make_key("other call"), "mail", finished_at=IdempotencyKey.objects.latest("pk").created_at, result=CHARGED)
    by_hand = make_key("by hand", status="failed")
    add_step(by_hand)
    record_outcome(by_hand, "charge", "by hand")
    IdempotencyKey.objects.filter(key="by hand").update(status="completed", attention_at=None, last_error=None)
    found = earlier_results(IdempotencyKey.objects.all(), "POST orders/", "charge")
    assert found == stored[:-19:-1]  # 20 without the one recorded by hand and the damaged one
