"""The list of keys: its badges, filters and search, the numbers above it, and by which queries."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.admin import overview as limits
from django_idempotency.admin.overview import Number
from django_idempotency.maintenance import in_doubt as keys_in_doubt
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, address, decide, detail, make_key, staff
from tests.expired import make_leased
from tests.factories import UserFactory
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db
VIEW = "view_idempotencykey"


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(reverse(LIST), query)
    return [result.key for result in answer.context["cl"].result_list]


def numbers(found: list[Number]) -> dict[str, str]:
    return {number.state: str(number) for number in found}


class TestSearch:
    @pytest.mark.parametrize("term", ["k-7", '"k-7"', " k-7 "])
    def test_a_key_is_found_as_the_client_sent_it(self, admin_client: Client, term: str) -> None:
        """With or without quotes, and exactly. An impossible key is no error."""
        make_key("k-7")
        make_key("k-77")
        assert listed(admin_client, q=term) == ["k-7"]
        assert listed(admin_client, q="a,b") == []

    def test_a_key_is_found_by_its_reference_in_the_log(self, admin_client: Client) -> None:
        """Or by its value, should a key look like a reference."""
        make_key("evt_1")
        make_key("7d4e5a76eae6d8c1")
        assert {*listed(admin_client, q="7d4e5a76eae6d8c1")} == {"evt_1", "7d4e5a76eae6d8c1"}

    def test_by_resource(self, admin_client: Client) -> None:
        """By its ID, or by its name and ID. An ID may hold a space."""
        make_key("a", resource_type="order", resource_id="59")
        make_key("b", resource_type="shop.Order", resource_id="59")
        make_key("c", resource_type="invoice", resource_id="59")
        make_key("d", resource_type="slot", resource_id="A 7")
        for text, keys in {
            "59": "cba",
            "order 59": "ba",
            "Order 59": "ba",
            "shop.Order 59": "b",
            "invoice 59": "c",
            "order 5": "",
            "rder 59": "",
            "A 7": "d",
            "slot A 7": "d",
            " ": "dcba",
        }.items():
            assert listed(admin_client, q=text) == list(keys), text

    def test_by_caller(self, admin_client: Client) -> None:
        """By the scope as the page shows it; by the user's name, for those who may see users."""
        ada: User = UserFactory(username="ada")
        make_key("hers", scope=f"user:auth.User:{ada.pk}")
        make_key("unknown", scope="anonymous")
        assert listed(admin_client, q="ada") == listed(staff(VIEW, "view_user"), q="ada") == ["hers"]
        assert listed(staff(VIEW), q="ada") == []
        assert listed(staff(VIEW), q=f"user:auth.User:{ada.pk}") == ["hers"]
        assert listed(admin_client, q="anonymous") == ["unknown"]
        assert listed(admin_client, q="bob") == []

    def test_the_newest_keys_of_a_caller_are_among_those_that_are_listed(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many there are: the index on the caller does not know which are the newest."""
        monkeypatch.setattr(limits, "LISTED", 2)
        for number in range(6):
            make_key(f"k-{number}", scope="s:1")
        assert listed(admin_client, q="s:1")[:2] == ["k-5", "k-4"]


class TestAlias:
    """The database of the pages: the alias that keys are written to, and never a replica."""

    READS_THE_REPLICA = {"DATABASE_ROUTERS": ["tests.routers.OtherIsRead"]}

    @pytest.mark.urls("tests.integration.admin_urls")
    @pytest.mark.parametrize("query", ["", "?state=in_doubt", "?q=k", "?operation=POST+pay/hold"])
    def test_no_page_reads_a_replica(self, operator: Client, in_doubt: IdempotencyKey, query: str) -> None:
        """A query to the replica is an error here: the test may ask `default` only."""
        history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
        with override_settings(**self.READS_THE_REPLICA):
            for page in (reverse(LIST) + query, detail(in_doubt), history):
                assert operator.get(page).status_code == 200

    @pytest.mark.urls("tests.integration.admin_urls")
    @pytest.mark.parametrize("decision", ["record", "answer", "release"])
    def test_a_decision_is_written_where_keys_are_written(
        self, admin_client: Client, in_doubt: IdempotencyKey, decision: str
    ) -> None:
        """On a replica that can be written, the decision would be lost. A recorded row is read there, too."""
        order = Order.objects.create(reference="by hand")
        with override_settings(**self.READS_THE_REPLICA):
            assert admin_client.get(address(in_doubt, decision)).status_code == 200
            data = {"result": f'{{"model": "shopapp.Order", "pk": {order.pk}}}'} if decision == "record" else {}
            decide(admin_client, in_doubt, decision, **data)
        assert not keys_in_doubt().exists()
        if decision == "record":
            expected = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
            assert in_doubt.steps.get().result == expected

    @pytest.mark.django_db(databases=["default", "other"])
    @pytest.mark.parametrize("how", ["setting", "subclass"])
    def test_the_projects_alias(self, operator: Client, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        """By the setting `USING`, or by a subclass: the pages and the decisions are about the keys there."""

        class OfOther(IdempotencyKeyAdmin):
            def get_queryset(self, request: Any) -> Any:
                return super().get_queryset(request).using("other")

        make_leased("k-other", "failed", doubt=True, using="other")
        row = keys_in_doubt(using="other").get()
        if how == "subclass":
            monkeypatch.setattr(site._registry[IdempotencyKey], "__class__", OfOther)
        with override_settings(IDEMPOTENCY={"USING": "other"} if how == "setting" else {}):
            assert "k-other" in operator.get(detail(row)).content.decode()
            assert "Released for retry." in decide(operator, row, "release")
        assert not keys_in_doubt(using="other").exists()


class TestCost:
    def test_pages_end_at_the_limit(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """The list pages through the newest keys and says no larger number."""
        monkeypatch.setattr(limits, "LISTED", 3)
        monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 2)
        for number in range(5):
            make_key(f"k-{number}")
        changelist = admin_client.get(reverse(LIST)).context["cl"]
        assert changelist.result_count == 3
        assert [row.key for row in changelist.result_list] == ["k-4", "k-3"]
        assert changelist.paginator.num_pages == 2
