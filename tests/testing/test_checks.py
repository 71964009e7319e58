"""The checks of `assert_idempotent`, sent one by one: good endpoints pass, each defect has a message of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Ledger, Order
from tests.testing import endpoint_urls
from tests.testing.endpoint_urls import DATA, HOOKS, good, logged_in, order
from tests.views import answers, creates, paths

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.test_checks")]
COUNTER = itertools.count()
KEPT: dict[str, bytes] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    KEPT.clear()


def gone(request: HttpRequest) -> HttpResponse:
    response = good(request)
    HOOKS["inside"]()
    return response


def picky(request: HttpRequest) -> HttpResponse:
    """Validates before the protected view is asked."""
    return HttpResponse("refused", status=400) if request.POST.get("reference") == "refused" else good(request)


def marks_only(request: HttpRequest) -> HttpResponse:
    """Says that it replays, and runs again."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return HttpResponse("no key", status=400)
    response = order(request)
    response["Idempotency-Replayed"] = "true" if key in KEPT else "false"
    KEPT.setdefault(key, response.content)
    return response


def works_without_a_key(request: HttpRequest) -> HttpResponse:
    """Refuses too late."""
    if "Idempotency-Key" not in request.headers:
        order(request)
    return good(request)


def everybody(request: HttpRequest) -> str:
    return "all"


urlpatterns = endpoint_urls.urlpatterns + paths(
    *(gone, picky, marks_only, works_without_a_key),
    unprotected=order,
    secret=idempotent(store_body=False)(order),
    dated=idempotent(late_keys="refuse")(order),
    elsewhere=idempotent(using="other")(creates(using="other")),
    creates_nothing=idempotent(answers(status=201)),
    constant=idempotent(record=lambda response: False)(answers("done")),
    never_kept=idempotent(record=lambda response: False)(order),
    anything_goes=idempotent(fingerprint=None)(order),
    changing=idempotent(fingerprint=lambda request: str(next(COUNTER)).encode())(order),
    by_body=idempotent(operation="by body", scope=lambda request: request.POST["reference"])(order),
    everybody=idempotent(scope=everybody)(order),
    everybodys_mismatch=idempotent(
        scope=everybody, fingerprint=lambda request: str(request.user.pk).encode() + request.body
    )(order),
)


class TestRefused:
    """Before anything is sent."""

    def test_an_asynchronous_client(self, async_client: AsyncClient) -> None:
        with pytest.raises(TypeError, match=r"needs django\.test\.Client, which tests asynchronous views too"):
            assert_idempotent(async_client, "/asynchronous")

    def test_inside_a_transaction_nothing_can_run_at_once(self, client: Client) -> None:
        with pytest.raises(RuntimeError, match=r"Use django\.test\.TransactionTestCase, or @pytest\.mark\.django_db"):
            assert_idempotent(client, "/good", DATA, transaction=True)
        assert not Order.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_in_memory_sqlite(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its threads would not really run at once."""
        monkeypatch.setattr(connections["default"], "vendor", "sqlite")
        monkeypatch.setattr(connections["default"], "is_in_memory_db", lambda: True, raising=False)
        with pytest.raises(RuntimeError, match=r"as an in-memory SQLite\. Use a file for it"):
            assert_idempotent(client, "/good", DATA, transaction=True)


class TestGoodEndpoints:
    @pytest.mark.parametrize("path", ["/good", "/asynchronous", "/secret", "/dated", "/leased"])
    def test_one_line_proves_them(self, client: Client, path: str) -> None:
        """A plain view, an asynchronous one, one that keeps no body, one under a lease."""
        response = assert_idempotent(client, path, DATA, creates=Order)
        assert response.headers["Idempotency-Replayed"] == "false"
        assert Order.objects.count() == 1

    def test_two_users_have_a_key_each(self) -> None:
        """The other one's request is a first one too."""
        assert_idempotent(logged_in(), "/members", DATA, creates=Order, other_client=logged_in())
        assert Order.objects.count() == 2
        (key,) = set(IdempotencyKey.objects.values_list("key", flat=True))
        assert str(UUID(key)) == key

    @pytest.mark.parametrize("headers", [{"headers": {"authorization": "Bearer ann"}}, {"HTTP_X_API_KEY": "ann"}])
    def test_the_other_user_does_not_send_the_first_ones_credential(self, client: Client, headers: Any) -> None:
        """It would be the first user, and get that response. Its own credential is sent."""
        told = []

        class Ben(Client):
            def post(self, *args: Any, **kwargs: Any) -> Any:
                response = super().post(*args, **kwargs)
                told.append([response.wsgi_request.headers.get(name) for name in ("Authorization", "X-Api-Key")])
                return response

        ben = Ben(headers={"Authorization": "Bearer ben"})
        assert_idempotent(client, "/good", DATA, creates=Order, other_client=ben, **headers)
        assert (told, Order.objects.count()) == ([["Bearer ben", None]], 2)

    @pytest.mark.django_db(databases=["default", "other"])
    def test_keys_on_another_database(self, client: Client) -> None:
        """using= says where."""
        assert_idempotent(client, "/elsewhere", DATA, using="other", creates=Order)

    @pytest.mark.parametrize(
        "creates",
        [Order.objects, Order.objects.filter(reference="a book"), Order.objects.count],
        ids=["manager", "queryset", "function"],
    )
    def test_what_is_created_can_be_named_in_many_ways(self, client: Client, creates: Any) -> None:
        """Besides the model."""
        assert_idempotent(client, "/good", DATA, creates=creates)

    def test_a_refusal_can_be_kept_too(self, client: Client) -> None:
        """expect_status says that it is meant."""
        Ledger.objects.create(entry="x")
        assert assert_idempotent(client, "/unique", {"entry": "x"}, expect_status=400).status_code == 400

    def test_the_projects_own_errors(self, client: Client) -> None:
        """In their format nobody can tell them apart, so any refusal counts."""
        with override_settings(IDEMPOTENCY={"ERROR_RESPONSE": "tests.testing.test_checks.own_error"}):
            assert_idempotent(client, "/good", DATA, creates=Order)


def own_error(request: Any, problem: Any) -> Any:
    return HttpResponse("no", status=418)


PROTECT = "Put @idempotent directly above the view, or IdempotencyMixin before the view's other base classes."
TWICE = "executed twice: the retry says that it is a replay, but"
NOT_KEPT = "no replay: the view ran again."
OPTIONAL = "a request without a key was not refused."
BY_COUNT = "Pass creates= to count rows."
BROKEN: list[tuple[str, dict[str, Any], str, str]] = [
    ("/unprotected", {}, "not protected: the response has no Idempotency-Replayed header.", PROTECT),
    ("/members", {}, "not protected", "302 without Idempotency-Replayed, Location: /accounts/login/?next=/members"),
    ("/good", {"expect_status": 200}, "the first request was answered with 201, not with 200, so", "expect_status="),
    ("/creates_nothing", {}, "creates= proves nothing: the first request created 0 Order rows.", "or leave creates="),
    ("/never_kept", {}, NOT_KEPT, "record= says that a 201 is not final"),
    ("/constant", {"creates": None}, NOT_KEPT, BY_COUNT),  # equal answers are no replay yet
    ("/changing", {}, "no replay: the same request was taken for a different one.", "fingerprint="),
    ("/marks_only", {}, f"{TWICE} the view ran again.", "created 1 more Order rows"),
    ("/marks_only", {"creates": None}, f"{TWICE} its response differs.", BY_COUNT),
    ("/anything_goes", {}, "mismatch accepted: a different body under the same key got the first resp", "changed=None"),
    (
        "/by_body",
        {"changed": {"reference": "x"}},
        "mismatch accepted: a different body under the same key was run.",
        "fingerprint= must cover",
    ),
    (
        "/picky",
        {"changed": {"reference": "refused"}},
        "a different body under the same key was refused with 400, but not because of the key.",
        "Pass changed= with a different body",
    ),
    ("/optional", {}, OPTIONAL, "required=False"),
    ("/works_without_a_key", {}, OPTIONAL, "It created 1 more Order rows."),  # refused after the work
    ("/check_then_act", {"changed": None}, "the response is replayed, but it is not in the key table.", "none."),
]


class TestBrokenEndpoints:
    """Each is caught by its own message, which says what to do."""

    @pytest.mark.parametrize(("path", "arguments", "headline", "advice"), BROKEN)
    def test_it_is_told(
        self, fails: Callable[..., str], path: str, arguments: dict[str, Any], headline: str, advice: str
    ) -> None:
        assert advice in fails(path, headline, **arguments)

    def test_switched_off(self, fails: Callable[..., str]) -> None:
        """The setting of a test project is the likely reason."""
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert 'IDEMPOTENCY["ENABLED"] is False here.' in fails("/good", "not protected")

    def test_a_key_of_its_own(self, fails: Callable[..., str]) -> None:
        """A key that this test does not send makes every first request a replay."""
        Client().post("/by_header", DATA, headers={"X-Event": "one"})
        message = fails("/by_header", "a new key was answered with a replay.", headers={"X-Event": "one"})
        assert "with_key=" in message

    def test_no_longer_there(self, fails: Callable[..., str]) -> None:
        """No replay, whatever else the retry is told."""
        HOOKS["inside"] = lambda: IdempotencyKey.objects.update(status="in_progress")
        message = fails("/gone", "no replay: the retry got 409.")
        assert "with this key: in_progress, scope 'anonymous', operation 'POST gone'." in message

    @pytest.mark.parametrize(
        ("path", "learned"),
        [
            ("/everybody", "got the first user's response."),
            ("/everybodys_mismatch", "was told that the key is in use."),
        ],
    )
    def test_one_scope_for_everybody(self, fails: Callable[..., str], path: str, learned: str) -> None:
        """Leak: another user gets the first one's answer, or learns that the key is in use."""
        headline = f"leak: another user with the same key {learned}"
        message = fails(path, headline, client=logged_in(), other_client=logged_in())
        assert "scope= must tell users apart" in message

    def test_another_user_who_never_reached_the_protection(self, fails: Callable[..., str]) -> None:
        """The redirect to the login says nothing about the scope."""
        headline = "other_client never reached the protection, so it proves nothing."
        assert "Response: 302" in fails("/members", headline, client=logged_in(), other_client=Client())
