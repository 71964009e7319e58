"""What is forgotten, what is kept, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.engine.request.callers import acting_for
from django_idempotency.keys import key_reference
from django_idempotency.maintenance import erasure, find_key, in_flight, scope_of_user, stuck
from django_idempotency.maintenance.erasure import Forgotten, forget, forget_scope, of_scope
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.factories import UserFactory
from tests.step_rows import add_step

Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]
NOTHING = Forgotten(deleted=0, kept=0)


def keys() -> set[tuple[str, str, str]]:
    return set(IdempotencyKey.objects.values_list("scope", "operation", "key"))


def test_only_this_key_of_this_caller_goes() -> None:
    """Under every operation it was used for, or under one. Neither its reference nor its header stands for it."""
    for scope, operation, key in [("a", "x", "k"), ("a", "y", "k"), ("a", "x", "K"), ("b", "x", "k")]:
        create_key(key, scope=scope, operation=operation)
    assert forget("A", "k") == forget("a", '"k"') == forget("a", key_reference("k")) == NOTHING
    assert forget("a", "k", operation="y") == Forgotten(deleted=1, kept=0)
    assert keys() == {("a", "x", "k"), ("a", "x", "K"), ("b", "x", "k")}
    create_key("k", scope="a", operation="y")
    assert forget("a", "k") == Forgotten(deleted=2, kept=0)
    assert keys() == {("a", "x", "K"), ("b", "x", "k")}


def test_a_caller_whose_name_differs_in_case_is_another_one() -> None:
    """As are the clients that act for it, on SQLite, too; and so is one whose name begins with this one's."""
    others = ("ADA", "ada-b", "ada,b", "ada.b", "adá")
    for user in ("ada", *others):
        for scope in (f"user:shop.User:{user}", acting_for(f"user:shop.User:{user}") + "client:1"):
            create_key("k", scope=scope)
    create_key("k", scope=acting_for("user:shop.User:ada") + "\U0010ffff")
    assert forget_scope("user:shop.User:ada") == Forgotten(deleted=3, kept=0)
    assert len(keys()) == 2 * len(others)


@pytest.mark.only_on("mysql")
def test_the_clients_that_act_for_a_caller_are_found_by_the_index() -> None:
    """Among many keys of others. PostgreSQL's plan is in stores/test_attention.py."""
    for number in range(200):
        create_key("k", scope=f"user:shop.User:{number}")
    plan = IdempotencyKey.objects.filter(of_scope("user:shop.User:7")).explain()
    assert "range" in plan, plan


def test_a_callers_keys_all_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches."""
    monkeypatch.setattr(erasure, "BATCH_SIZE", 3)
    user = UserFactory()
    for number in range(7):
        create_key(f"k{number}", scope=scope_of_user(user))
        create_key(f"k{number}", scope="somebody else")
    with CaptureQueriesContext(connection) as queries:
        assert forget_scope(scope_of_user(user)) == Forgotten(deleted=7, kept=0)
    assert sum("LIMIT 3" in query["sql"] for query in queries) == 4
    assert {scope for scope, _, _ in keys()} == {"somebody else"}
    assert IdempotencyKey.objects.count() == 7
    assert forget_scope(scope_of_user(user)) == NOTHING


def test_a_hashed_scope_is_forgotten_in_either_form() -> None:
    """As the endpoint returns it, and as the admin shows it."""
    scope = "x" * 300
    for key in ("k1", "k2", "k3"):
        create_key(key, scope=scope)
    shown = IdempotencyKey.objects.values_list("scope", flat=True)[0]
    assert shown.startswith("scope:")
    assert forget(shown, "k1") == forget(scope, "k2") == Forgotten(deleted=1, kept=0)
    assert forget_scope(shown) == Forgotten(deleted=1, kept=0)


def test_keys_in_use_are_kept() -> None:
    """In progress, abandoned, in doubt or half done; the rest goes with its steps."""
    create_key("running", scope="a", status="in_progress")
    create_key("abandoned", scope="a", status="abandoned")
    add_step(create_key("in doubt", scope="a", status="failed"), finished_at=None)
    add_step(create_key("half done", scope="a", status="failed"), finished_at=timezone.now(), result="{}")
    create_key("failed", scope="a", status="failed")
    add_step(create_key("done", scope="a"), finished_at=timezone.now(), result="{}")
    add_step(create_key("done all the same", scope="a"), finished_at=None)
    assert forget("a", "running") == Forgotten(deleted=0, kept=1)
    examined: list[int] = []
    assert forget_scope("a", progress=examined.append) == Forgotten(deleted=3, kept=4)
    assert examined == [7]
    assert {key for _, _, key in keys()} == {"running", "abandoned", "in doubt", "half done"}
    assert IdempotencyStep.objects.count() == 2


def test_unsettled_keys_go_if_they_are_asked_for() -> None:
    """Stuck, or with a call in doubt, each with its steps. A worker with a live lease keeps its key."""
    create_key("running", scope="a", status="in_progress")
    for key, status in (("abandoned", "abandoned"), ("doubt", "failed"), ("another", "failed")):
        add_step(create_key(key, scope="a", status=status), finished_at=None)
    create_key("no lease", scope="a", status="in_progress")
    IdempotencyKey.objects.filter(key="no lease").update(locked_until=None)
    assert forget("a", "doubt", include_unsettled=True) == Forgotten(deleted=1, kept=0)
    assert forget_scope("a", include_unsettled=True) == Forgotten(deleted=3, kept=1)
    assert {key for _, _, key in keys()} == {"running"}
    assert not IdempotencyStep.objects.exists()


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_on_another_database_the_same_keys_are_kept() -> None:
    """Its rows and its steps decide, in a transaction of its own."""
    create_key("doubt", scope="a", in_doubt=["charge"], using="other")
    create_key("running", scope="a", status="in_progress", using="other")
    assert forget_scope("a", using="other") == Forgotten(deleted=0, kept=2)
    assert forget("a", "doubt", using="other") == Forgotten(deleted=0, kept=1)
    assert forget_scope("a", using="other", include_unsettled=True) == Forgotten(deleted=1, kept=1)
    assert IdempotencyKey.objects.using("other").get().key == "running"


def test_only_a_saved_user_has_a_scope() -> None:
    """The same that requests get."""
    assert scope_of_user(UserFactory(pk=77)) == "user:auth.User:77"
    with pytest.raises(IdempotencyConfigurationError, match="has no primary key"):
        scope_of_user(AnonymousUser())


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_key_that_somebody_is_taking_over_is_kept(in_threads: Threads) -> None:
    """Its row is locked: it is passed over without waiting."""
    row = create_key("k1", scope="a", status="failed")

    def impatiently(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")
        return forget("a", "k1")

    with transaction.atomic():
        IdempotencyKey.objects.select_for_update(no_key=True).get(pk=row.pk)
        assert in_threads(1, impatiently) == [Forgotten(deleted=0, kept=1)]
    assert forget("a", "k1") == Forgotten(deleted=1, kept=0)


# --- finding keys


Find = Callable[..., QuerySet[IdempotencyKey]]


def found(keys: QuerySet[IdempotencyKey]) -> list[str]:
    return list(keys.values_list("key", flat=True))


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

    def test_a_text_that_can_be_two_keys_finds_both(self) -> None:
        """A form or a message can have carried the quotation marks."""
        for key in ("a", '"a"'):
            create_key(key)
        assert found(find_key('"a"')) == ["a", '"a"']


@pytest.mark.parametrize("find", [in_flight, stuck])
def test_the_lease_that_ends_first_comes_first(find: Find) -> None:
    """The order in which they were claimed does not count."""
    sign = 1 if find is in_flight else -1
    for key, hours in (("b", 2), ("a", 1), ("c", 3)):
        row = create_key(key, status="in_progress")
        until = timezone.now() + timedelta(hours=sign * hours)
        IdempotencyKey.objects.filter(pk=row.pk).update(locked_until=until)
    assert found(find()) == (["a", "b", "c"] if find is in_flight else ["c", "b", "a"])
