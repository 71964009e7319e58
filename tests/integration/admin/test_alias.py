"""The database of the admin's pages: the alias that keys are written to, and never a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin import site
from django.test import Client, override_settings
from django.urls import reverse

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.maintenance.lookups import in_doubt as keys_in_doubt
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, address, decide, detail
from tests.expired import make_leased
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = pytest.mark.urls("tests.integration.admin_urls")
READS_THE_REPLICA = {"DATABASE_ROUTERS": ["tests.routers.OtherIsRead"]}


@pytest.mark.django_db  # a query to the replica is an error: the test may ask `default` only
class TestReplica:
    @pytest.mark.parametrize("query", ["", "?state=in_doubt", "?q=k", "?operation=POST+pay/hold", "?date=1h"])
    def test_the_list_does_not_read_it(self, operator: Client, in_doubt: IdempotencyKey, query: str) -> None:
        with override_settings(**READS_THE_REPLICA):
            assert operator.get(reverse(LIST) + query).status_code == 200

    def test_the_page_of_a_key_does_not_read_it(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        with override_settings(**READS_THE_REPLICA):
            assert in_doubt.reference in operator.get(detail(in_doubt)).content.decode()
            history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
            assert operator.get(history).status_code == 200

    @pytest.mark.parametrize("decision", ["record", "answer", "release"])
    def test_a_decision_is_written_where_keys_are_written(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str
    ) -> None:
        """On a replica that can be written, the decision would be lost."""
        with override_settings(**READS_THE_REPLICA):
            assert operator.get(address(in_doubt, decision)).status_code == 200
            decide(operator, in_doubt, decision)
        assert not keys_in_doubt().exists()

    def test_a_recorded_row_is_read_where_it_was_written(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """The retry fetches the row from the database that is kept with it."""
        order = Order.objects.create(reference="by hand")
        with override_settings(**READS_THE_REPLICA):
            decide(operator, in_doubt, "record", result=f'{{"model": "shopapp.Order", "pk": {order.pk}}}')
        assert in_doubt.steps.get().result == f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'

    def test_a_selection_is_decided_where_keys_are_written(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        ticked = {"action": "release_selected", "index": "0", "_selected_action": [in_doubt.pk]}
        entered = {"decided": "1", "seen": [f"{in_doubt.pk}:1"], "reason": "T-7", "looked": "on"}
        with override_settings(**READS_THE_REPLICA):
            operator.post(reverse(LIST), {**ticked, **entered}, follow=True)
        assert not keys_in_doubt().exists()


@pytest.mark.django_db(databases=["default", "other"])
def test_the_projects_alias(operator: Client) -> None:
    """`IDEMPOTENCY["USING"]`: the pages and the decisions are about the keys there."""
    make_leased("k-other", "failed", doubt=True, using="other")
    row = keys_in_doubt(using="other").get()
    with override_settings(IDEMPOTENCY={"USING": "other"}):
        assert "k-other" in operator.get(reverse(LIST)).content.decode()
        assert "k-other" in operator.get(detail(row)).content.decode()
        assert "Released for retry." in decide(operator, row, "release")
    assert not keys_in_doubt(using="other").exists()


class OfOther(IdempotencyKeyAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using("other")


@pytest.mark.django_db(databases=["default", "other"])
def test_a_subclass_may_choose_another_alias(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decisions follow its keys."""
    make_leased("k-other", "failed", doubt=True, using="other")
    row = keys_in_doubt(using="other").get()
    monkeypatch.setattr(site._registry[IdempotencyKey], "__class__", OfOther)
    assert "k-other" in operator.get(detail(row)).content.decode()
    assert "Released for retry." in decide(operator, row, "release")
    assert not keys_in_doubt(using="other").exists()
