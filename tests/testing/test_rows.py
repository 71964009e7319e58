"""Rows made by `create_key`, and the real requests that meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse, JsonResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory, override_settings
from django.utils import timezone

from django_idempotency import ResultNotStorable
from django_idempotency.maintenance import in_doubt
from django_idempotency.maintenance.lookups import half_done
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key, scope_of_user
from tests.at_rest import NEW
from tests.factories import UserFactory
from tests.shopapp.models import Order
from tests.testing import leased_urls

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    leased_urls.MADE.clear()


def test_an_anonymous_caller_meets_the_row(post: Post) -> None:
    """And gets its response, byte for byte; the view does not run."""
    create_key("k1", path="/good", response=JsonResponse({"id": 7}, status=202, headers={"X-Mark": "x"}))
    answer = post("/good", key="k1")
    assert (answer.status_code, answer.content, answer.headers["X-Mark"]) == (202, b'{"id": 7}', "x")
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert not Order.objects.exists()


def test_a_user_meets_her_own_row_only() -> None:
    """By the user, or by her scope."""
    ann, bob = UserFactory(), UserFactory()
    create_key("k1", user=ann, path="/members")
    create_key("k2", scope=scope_of_user(bob), operation="POST members")
    answers = {}
    for user in (ann, bob):
        client = Client()
        client.force_login(user)
        for key in ("k1", "k2"):
            answer = client.post("/members", headers={"Idempotency-Key": key})
            answers[user, key] = answer.status_code, answer.content[:3], answer.headers["Idempotency-Replayed"]
    assert answers[ann, "k1"] == answers[bob, "k2"] == (201, b"{}", "true")
    assert answers[ann, "k2"][2] == answers[bob, "k1"][2] == "false"


@pytest.mark.parametrize(
    ("status", "answered", "replayed"),
    [("completed", 201, "true"), ("in_progress", 409, "false"), ("abandoned", 201, "false"), ("failed", 201, "false")],
)
def test_each_status_is_met_as_it_says(post: Post, status: Any, answered: int, replayed: str) -> None:
    """A replay, a conflict, and two that run again."""
    row = create_key("k1", path="/leased", status=status)
    assert row.status == {"abandoned": "in_progress"}.get(status, status)
    answer = post("/leased", key="k1")
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (answered, replayed)
    assert Order.objects.count() == (1 if (answered, replayed) == (201, "false") else 0)
    row.refresh_from_db()
    assert row.attempt == (2 if Order.objects.exists() else 1)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_an_expired_row_is_as_if_never_seen(post: Post, status: Any) -> None:
    """Its times are all in the past, in their order."""
    row = create_key("k1", path="/leased", status=status, expired=True)
    assert row.created_at < row.expires_at < timezone.now()
    assert post("/leased", key="k1").headers["Idempotency-Replayed"] == "false"
    assert Order.objects.count() == 1


def test_a_tombstone_is_not_run_again(post: Post) -> None:
    """There is nothing to replay, as with `store_body=False`."""
    create_key("k1", path="/good", tombstone=True, response=HttpResponse("secret", headers={"Location": "/1"}))
    answer = post("/good", key="k1")
    assert (answer.status_code, "Location" in answer.headers) == (409, False)
    assert answer.json()["title"] == "Idempotency-Key is completed, response not stored"
    assert b"secret" not in answer.content


def test_a_fingerprint_is_compared_and_a_template_is_rendered(post: Post) -> None:
    """Without a fingerprint any request matches."""
    create_key("k1", path="/good", fingerprint=b"f" * 32)
    assert post("/good", key="k1").status_code == 422
    template = engines["django"].from_string("{{ name }}")
    create_key("k2", path="/good", response=TemplateResponse(RequestFactory().get("/"), template, {"name": "Ann"}))
    assert post("/good", key="k2").content == b"Ann"


def test_without_arguments_it_makes_a_new_key_each_time() -> None:
    """Living for as long as the project says."""
    with override_settings(IDEMPOTENCY={"TTL": 60}):
        rows = [create_key(), create_key()]
    assert len({row.key for row in rows}) == 2
    assert {(row.scope, row.operation, row.status, row.attempt) for row in rows} == {
        ("anonymous", "POST orders/", "completed", 1)
    }
    assert abs((rows[0].expires_at - rows[0].created_at).total_seconds() - 60) < 0.1


@pytest.mark.django_db(databases=["default", "other"])
def test_on_another_database() -> None:
    """using= says which."""
    create_key(using="other")
    assert (IdempotencyKey.objects.count(), IdempotencyKey.objects.using("other").count()) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scope": "s", "user": User(pk=1)}, "Give scope or user to create_key, not both"),
        ({"operation": "POST good", "path": "/good"}, "Give operation or path to create_key, not both"),
        ({"key": "k1"}, "A row with the key 'k1' exists already: a request with it gets Completed"),
        (
            {"status": "completed", "in_doubt": ["mail"]},
            "A completed key is neither in doubt nor half done: give statu",
        ),
        ({"status": "completed", "half_done": {"charge": 1}}, "A completed key is neither in doubt nor half done"),
        ({"in_doubt": "mail"}, r"in_doubt='mail': give a list of names, \['mail'\]"),
        ({"key": "k2", "steps": {"charge": object()}}, "not JSON"),
    ],
)
def test_what_cannot_be_is_refused(arguments: Any, message: str) -> None:
    """Two names for one thing, a second living row, a state that is none. Nothing is written."""
    create_key("k1")
    with pytest.raises((ValueError, ResultNotStorable), match=message):
        create_key(**arguments)
    assert IdempotencyKey.objects.count() == 1


class TestSteps:
    """Keys of leased views, as attempts leave them that did not come to their end."""

    urls = pytest.mark.urls("tests.testing.leased_urls")

    @urls
    def test_the_next_attempt_goes_on_behind_the_finished_step(self, post: Post) -> None:
        """The call is not made; the view gets its result. A failed key is half done."""
        row = create_key("k1", path="/leased", half_done={"charge": {"id": "ch_1"}})
        assert (row.status, row.policy, list(half_done())) == ("failed", "retry", [row])
        answer = post("/leased", key="k1")
        assert (answer.status_code, answer.json()["charge"]) == (201, "ch_1")
        assert leased_urls.MADE == []

    @urls
    def test_a_model_instance_is_the_result_of_a_write(self, post: Post) -> None:
        """It is fetched again."""
        order = Order.objects.create()
        create_key("k1", path="/leased", status="abandoned", steps={"charge": {"id": "ch_1"}, "order": order})
        assert post("/leased", key="k1").json() == {"order": order.pk, "charge": "ch_1"}
        kinds = IdempotencyStep.objects.exclude(finished_at=None).values_list("name", "kind")
        assert set(kinds) == {("charge", "call"), ("order", "write")}
        assert Order.objects.count() == 1

    @urls
    @pytest.mark.parametrize(
        ("path", "policy", "answered"), [("/held", "hold", 409), ("/no_derived_key", "retry", 201)]
    )
    def test_a_call_in_doubt_meets_the_policy_of_the_view(
        self, post: Post, path: str, policy: str, answered: int
    ) -> None:
        """On hold a person is asked; else the call is made again."""
        row = create_key("k1", path=path, in_doubt=["charge"])
        assert (row.status, row.policy, list(in_doubt())) == ("failed", policy, [row])
        assert post(path, key="k1").status_code == answered

    @urls
    def test_reconcile_is_asked(self, post: Post) -> None:
        """About the call in doubt."""
        leased_urls.MADE[:] = ["found"]
        create_key("k1", path="/looks_up", in_doubt=["charge"])
        assert post("/looks_up", key="k1").json()["charge"] == "ch_found"
        assert leased_urls.MADE == ["found"]

    @urls
    def test_the_operation_of_the_endpoint(self, post: Post) -> None:
        """What operation= says there."""
        assert create_key("k1", path="/named").operation == "named by hand"
        assert post("/named", key="k1").headers["Idempotency-Replayed"] == "true"

    @urls
    def test_a_path_without_a_protected_view(self) -> None:
        """Its route is the operation; the policy is the default."""
        row = create_key("k1", path="/plain", in_doubt=["mail"])
        assert (row.operation, row.policy) == ("POST plain", "retry")

    def test_a_completed_key_keeps_its_steps(self) -> None:
        """Its lease is over."""
        row = create_key("k1", steps={"charge": 1})
        assert (row.status, row.policy, row.locked_until) == ("completed", "retry", None)
        assert [step.result for step in row.steps.all()] == ['{"value": 1}']

    def test_results_are_encrypted(self) -> None:
        """As those of real steps."""
        pytest.importorskip("cryptography")
        with override_settings(IDEMPOTENCY={"ENCRYPTION_KEYS": [NEW]}):
            row = create_key("k1", half_done={"charge": "ch_1"})
        (step,) = row.steps.all()
        assert "ch_1" not in step.result
