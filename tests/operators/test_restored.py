"""What `remember_calls` enters after a restore, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_idempotency import ResultNotStorable
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import half_done, remember_calls
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.claims import a_claim
from tests.leases import row

pytestmark = pytest.mark.django_db
PAY = "POST pay/"


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("using", ["default", "other"])
def test_a_key_that_is_gone_is_created_half_done(using: str) -> None:
    """For as long as leased keys are kept, under "hold". Keys of other callers and operations change nothing."""
    for scope, operation in (("another", PAY), ("s", "POST other/")):
        create_key("k", scope=scope, operation=operation, steps={"charge": 9}, status="completed", using=using)
    assert remember_calls("s", PAY, "k", {"fee": 1, "charge": 2}, using=using) == {"fee": 1, "charge": 2}
    assert remember_calls("s", PAY, "k", {"charge": 3}, using=using) == {"charge": 2}
    assert remember_calls("s", PAY, "k", {}, using=using) == {}
    key = half_done(using=using).get()
    assert (key.scope, key.operation, key.key, key.policy) == ("s", PAY, "k", "hold")
    assert key.last_error == "The results of its calls were entered, for example after a restore."
    assert abs(key.expires_at - key.updated_at - timedelta(days=35)) < timedelta(minutes=1)


@pytest.mark.parametrize("status", ["completed", "in_progress"])
def test_what_is_completed_or_at_work_is_left_alone(status: Any) -> None:
    before = create_key("k", scope="s", operation=PAY, status=status)
    assert remember_calls("s", PAY, "k", {"charge": 1}) == {}
    assert (row(), before.steps.count()) == (before, 0)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_key_whose_request_runs_is_left_alone(in_threads: Callable[..., list[Any]]) -> None:
    """In atomic mode its row is not visible yet. It is not waited for."""
    with transaction.atomic():
        store_for("default").claim(a_claim(scope="s", operation=PAY, key="k"))
        assert in_threads(1, lambda number: remember_calls("s", PAY, "k", {"charge": 1})) == [{}]


def test_a_write_in_doubt_is_left_for_a_person() -> None:
    """Nobody knows whether its rows are there."""
    create_key("k", scope="s", operation=PAY, steps={"fee": 1}, in_doubt=["order"])
    IdempotencyStep.objects.filter(name="order").update(kind="write")
    assert remember_calls("s", PAY, "k", {"fee": 2, "order": 3, "charge": 4}) == {"fee": 1}
    assert sorted(IdempotencyStep.objects.values_list("name", "result")) == [("fee", '{"value": 1}'), ("order", None)]


def test_a_completed_key_whose_ttl_is_over_is_left_alone() -> None:
    """Half done, its order would be made a second time."""
    create_key("k", scope="s", operation=PAY, steps={"charge": 1}, status="completed")
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert remember_calls("s", PAY, "k", {"charge": 2}) == {"charge": 1}
    assert row().status == "completed"


def test_a_result_that_is_there_stays() -> None:
    """Of a key with two calls, the one in doubt gets its result."""
    key = create_key("k", scope="s", operation=PAY, steps={"fee": 1}, in_doubt=["charge"], on_abandoned="hold")
    assert remember_calls("s", PAY, "k", {"fee": 2, "charge": 3}) == {"fee": 1, "charge": 3}
    results = dict(key.steps.values_list("name", "result"))
    assert results == {"fee": '{"value": 1}', "charge": '{"value": 3}'}


def test_if_one_result_cannot_be_stored_none_is() -> None:
    """Otherwise the key would be left in progress, or half entered."""
    with pytest.raises(ResultNotStorable):
        remember_calls("s", PAY, "k", {"fee": 1, "charge": object()})
    assert not IdempotencyKey.objects.exists()
