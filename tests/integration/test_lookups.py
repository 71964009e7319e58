"""Finding keys by the client's key, and those that need attention."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.keys import key_reference
from django_idempotency.maintenance import find_key, find_resource, in_doubt, in_flight, stuck
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key

pytestmark = pytest.mark.django_db
Find = Callable[..., QuerySet[IdempotencyKey]]


def found(keys: QuerySet[IdempotencyKey]) -> list[str]:
    return list(keys.values_list("key", flat=True))


def add_call(row: IdempotencyKey, *, finished: bool = False, using: str = "default") -> None:
    at = row.created_at
    IdempotencyStep.objects.using(using).create(
        key=row, name="charge", kind="call", attempt=1, started_at=at, finished_at=at if finished else None
    )


class TestFindKey:
    @pytest.mark.parametrize("text", ["8e03978e", '"8e03978e"', ' "8e03978e";a=1 ', key_reference("8e03978e")])
    def test_by_the_key_the_header_or_the_reference(self, text: str) -> None:
        """As a customer, a log or a header has it."""
        create_key("8e03978e")
        create_key("another")
        assert found(find_key(text)) == ["8e03978e"]

    def test_each_caller_and_operation_has_a_row(self) -> None:
        """Oldest first."""
        rows = [create_key("k", scope=scope, operation=operation) for scope, operation in ("ba", "ac", "aa")]
        assert list(find_key("k")) == rows

    @pytest.mark.parametrize("key", ["a,b", '"quoted"', "0123456789abcdef", ":a:"])
    def test_a_key_that_a_bare_header_could_not_carry(self, key: str) -> None:
        """It was quoted in the header, or came from elsewhere."""
        create_key(key)
        assert found(find_key(key)) == [key]

    @pytest.mark.parametrize("text", ["", " ", "no key", "é", "\0", "x" * 256, "8E03978E", "0" * 16])
    def test_nothing_is_found_by_other_texts(self, text: str) -> None:
        """Neither an error nor a guess."""
        create_key("8e03978e")
        assert found(find_key(text)) == []


@pytest.fixture
def one_of_each() -> None:
    create_key("completed")
    add_call(create_key("completed with a doubt that its view has dealt with"))
    create_key("live", status="in_progress")
    add_call(create_key("live in a call", status="in_progress"))
    create_key("stuck", status="abandoned")
    add_call(create_key("stuck in a call", status="abandoned"))
    add_call(create_key("failed in a call", status="failed"))
    add_call(create_key("failed after a call", status="failed"), finished=True)


@pytest.mark.usefixtures("one_of_each")
def test_they_can_be_filtered_and_used_in_other_queries() -> None:
    """As every QuerySet."""
    assert found(stuck().filter(pk__in=in_doubt())) == ["stuck in a call"]
    assert found(IdempotencyKey.objects.filter(pk__in=in_flight(), steps__name="charge")) == ["live in a call"]


@pytest.mark.parametrize("find", [in_flight, stuck])
def test_the_lease_that_ends_first_comes_first(find: Find) -> None:
    """The order in which they were claimed does not count."""
    sign = 1 if find is in_flight else -1
    for key, hours in (("b", 2), ("a", 1), ("c", 3)):
        row = create_key(key, status="in_progress")
        until = timezone.now() + timedelta(hours=sign * hours)
        IdempotencyKey.objects.filter(pk=row.pk).update(locked_until=until)
    assert found(find()) == (["a", "b", "c"] if find is in_flight else ["c", "b", "a"])


@pytest.mark.parametrize("find", [in_flight, stuck, in_doubt, lambda **kwargs: find_key("k", **kwargs)])
def test_an_unknown_alias_is_named(find: Find) -> None:
    """With the ones that there are."""
    with pytest.raises(IdempotencyConfigurationError, match="database 'nowhere', which does not exist"):
        find(using="nowhere")


@pytest.mark.django_db(databases=["default", "other"])
def test_they_ask_the_alias_that_is_named(django_assert_num_queries: Any) -> None:
    """Its keys, its steps and its clock."""
    add_call(create_key("k", status="abandoned", using="other"), using="other")
    with django_assert_num_queries(0):
        assert found(stuck(using="other")) == found(in_doubt(using="other")) == found(find_key("k", using="other"))
        assert found(in_doubt(using="other")) == ["k"]


@pytest.mark.django_db(databases=["default", "other"])
def test_a_resource_is_found_by_its_id_or_with_its_type() -> None:
    """An id may have spaces. The alias is the one that is named."""
    for key, type_, id_ in (("k1", "shop.Order", "59"), ("k2", None, "order 59"), ("k3", "shop.Cart", "59")):
        create_key(key, using="other")
        row = IdempotencyKey.objects.using("other").filter(key=key)
        row.update(resource_type=type_, resource_id=id_)
    assert found(find_resource("order 59", using="other")) == ["k1", "k2"]
    assert found(find_resource("59", using="other")) == ["k1", "k3"]
    assert found(find_resource("59")) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_is_the_databases(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """An application whose clock is an hour wrong finds the same keys."""
    create_key("live", status="in_progress")
    create_key("stuck", status="abandoned")
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(hours=hours))
    assert (found(in_flight()), found(stuck())) == (["live"], ["stuck"])
