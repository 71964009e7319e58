"""What a client can make the log say, and how loudly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from django_idempotency.maintenance.resolution import release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if vars(record).get("event") == "held"]


def test_a_doubt_is_one_error_however_often_the_client_retries(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    """The next attempt that ends in doubt is the next error."""
    caplog.set_level(logging.INFO, "django_idempotency")
    for attempt in (1, 2):
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        assert [post("/pay/hold").status_code for _ in range(3)] == [409, 409, 409]
        assert held(caplog) == ["ERROR", "INFO", "INFO"] * attempt
        release_for_retry(row().pk, attempt=attempt)


def test_steps_that_an_atomic_view_cannot_continue_are_one_error_too(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    """The view was leased once. A later attempt is news, and the record names the object."""
    caplog.set_level(logging.INFO, "django_idempotency")
    create_key("k", operation="changed", half_done={"charge": 1})
    IdempotencyKey.objects.update(resource_type="shop.order", resource_id="59")
    for attempt in (7, 8):
        IdempotencyKey.objects.update(attempt=attempt)
        assert [post("/changed/atomic", key="k").status_code for _ in range(2)] == [409, 409]
    assert held(caplog) == ["ERROR", "INFO"] * 2
    assert [vars(record)["resource_id"] for record in caplog.records if hasattr(record, "resource_id")] == ["59"] * 4


def test_what_is_remembered_is_bounded(
    post: Post, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with many held keys does not fill the memory: the oldest is told again."""
    monkeypatch.setattr("django_idempotency.engine.events.REMEMBERED", 1)
    caplog.set_level(logging.INFO, "django_idempotency")
    GATEWAY.after = breaks
    first, second = str(uuid4()), str(uuid4())  # the process may remember those of an earlier run of this test
    for key in (first, second):
        with pytest.raises(Broken):
            post("/pay/hold", key=key)
    for key in (first, second, first):
        assert post("/pay/hold", key=key).status_code == 409
    assert held(caplog) == ["ERROR"] * 3
