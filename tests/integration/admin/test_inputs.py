"""What no page can show and no database can look for is an answer of the admin, and no server error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import LIST, address, decide, detail
from tests.integration.leased_urls import GATEWAY
from tests.leases import Broken, breaks

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
HALF = r'{"\ud800": "\udfff"}'
"""JSON with two halves of surrogate pairs."""


@pytest.mark.parametrize("name", ["operation", "state"])
def test_a_filter_by_an_impossible_value_finds_nothing(operator: Client, in_doubt: IdempotencyKey, name: str) -> None:
    """No key has NUL in its operation or status, which PostgreSQL would refuse to look for."""
    page = operator.get(reverse(LIST) + f"?{name}=%00")
    assert (page.status_code, "0 idempotency keys" in page.content.decode()) == (200, True)


@pytest.mark.parametrize("pk", ["\\u0000", "\\ud800", "a\\u0000b"])
def test_a_row_with_an_impossible_primary_key_does_not_exist(
    operator: Client, in_doubt: IdempotencyKey, pk: str
) -> None:
    """The form says so."""
    page = decide(operator, in_doubt, "record", result=f'{{"model": "sessions.Session", "pk": "{pk}"}}')
    assert "There is no sessions.Session with the primary key" in page


def test_a_row_with_an_infinite_primary_key_does_not_exist(operator: Client, in_doubt: IdempotencyKey) -> None:
    """Python reads 1e999 as infinity, which is no integer."""
    page = decide(operator, in_doubt, "record", result='{"model": "auth.User", "pk": 1e999}')
    assert "There is no auth.User with the primary key inf" in page


@pytest.mark.parametrize("result", [HALF, '"\\ud800"', '"\\u0000"'])
def test_a_result_with_half_a_character_is_recorded(operator: Client, in_doubt: IdempotencyKey, result: str) -> None:
    """As it is kept when the call returns it. The pages spell it out."""
    assert "Recorded the outcome" in decide(operator, in_doubt, "record", result=result)
    assert IdempotencyStep.objects.get().result == f'{{"value": {result}}}'
    assert operator.get(detail(in_doubt)).status_code == 200
    assert "Recorded the outcome" in decide(operator, in_doubt, "record", result="1")  # a correction
    assert operator.get(detail(in_doubt)).status_code == 200


def test_an_example_with_half_a_character_is_shown(operator: Client, post: Post) -> None:
    """And the names that a result lacks."""
    post("/pay/hold", key="k-1")
    IdempotencyStep.objects.filter(name="charge").update(result=f'{{"value": {HALF}}}')
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold", key="k-2")
    key = IdempotencyKey.objects.get(key="k-2")
    assert r"\ud800" in operator.get(address(key, "record")).content.decode()
    entered = {"attempt": key.attempt, "step": "charge", "result": "{}", "reason": "T-7"}
    assert r"also has these names: \ud800." in operator.post(address(key, "record"), entered).content.decode()
