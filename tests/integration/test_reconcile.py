"""What `reconcile` does is what the view then sees; and the end of a leased view commits, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency import IdempotencyConfigurationError, Operation, get_operation, run_once
from django_idempotency.maintenance import needs_attention
from django_idempotency.models import IdempotencyKey
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row

pytestmark = pytest.mark.django_db


def pay(view: Callable[[Operation], Any], reconcile: Callable[[Operation], Any] | None = None) -> Any:
    options: dict[str, Any] = {"lease": 60, "on_abandoned": "hold", "reconcile": reconcile}
    return run_once(view, scope="s", key="k", operation="pay", **options).value


@pytest.fixture
def doubt() -> None:
    """A charge that timed out."""
    with pytest.raises(Broken):
        pay(lambda operation: operation.call("charge", breaks))


@pytest.mark.usefixtures("doubt")
def test_a_call_that_it_makes_in_vain_is_in_doubt() -> None:
    """The view knows, and can make the call again."""

    def refund(operation: Operation) -> None:
        operation.call("charge", lambda: "found")
        with pytest.raises(Broken):
            operation.call("refund", breaks)

    def view(operation: Operation) -> Any:
        return [operation.in_doubt, operation.call("refund", lambda: "refunded"), operation.in_doubt]

    assert pay(view, refund) == [["refund"], "refunded", []]


@pytest.mark.parametrize(("status", "final"), [(402, False), (202, True)])
@pytest.mark.urls("tests.integration.leased_urls")
def test_a_view_that_catches_a_timeout_cannot_refuse(post: Any, status: int, final: bool) -> None:
    """A kept "payment failed" would hide a charge that has taken effect. With a 2xx the view says that it knows."""
    GATEWAY.reset()
    GATEWAY.after = breaks

    def view(request: Any) -> str:
        operation = get_operation(request)
        with pytest.raises(Broken):
            operation.call("charge", GATEWAY.charge, "k")
        return "caught"

    HOOKS.update(view=view)
    answers = [post(f"/hooked/hold?status={status}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status if final else 409]
    assert (needs_attention().count(), len(GATEWAY.charges)) == (0 if final else 1, 1)
    assert final or row().last_error == "The view answered 402, with a call in doubt: charge."


def test_a_coroutine_that_nobody_awaits_is_no_result() -> None:
    """The charge has not been made: the view must not go on as if it had, and the retry neither."""

    async def charge() -> None:
        raise AssertionError

    coroutine = charge()
    with pytest.raises(IdempotencyConfigurationError, match=r"await operation\.acall\('charge'"):
        pay(lambda operation: operation.call("charge", lambda: coroutine))
    coroutine.close()
    assert needs_attention().count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_view_that_leaves_autocommit_off_is_refused(fails: bool) -> None:
    """Its end would never be committed, although the client was told 201."""

    def leaves_it_off(operation: Operation) -> None:
        transaction.set_autocommit(False)
        if fails:
            raise Broken

    try:
        with pytest.raises(Broken if fails else IdempotencyConfigurationError):
            pay(leaves_it_off)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    connection.close()
    assert IdempotencyKey.objects.get().status == "in_progress"  # it waits for its lease
