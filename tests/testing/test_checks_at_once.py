"""`assert_idempotent(transaction=True)`: duplicates that arrive at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Barrier, Semaphore, current_thread, main_thread
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import include, path

from django_idempotency import idempotent
from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Ledger, Order
from tests.testing import endpoint_urls
from tests.testing.endpoint_urls import DATA, HOOKS, good, in_steps, logged_in
from tests.views import paths

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.test_checks_at_once")]
DUPLICATES = 4


@idempotent
def capture(request: HttpRequest, pk: int) -> HttpResponse:
    """Works once for each order, whatever the key."""
    if Ledger.objects.filter(entry=pk).exists():
        return HttpResponse("captured already", status=400)
    return JsonResponse({"id": Ledger.objects.create(entry=pk).pk}, status=201)


def works_anyway(request: HttpRequest) -> HttpResponse:
    """Does something for each duplicate, outside of what is protected."""
    response = good(request)
    if response["Idempotency-Replayed"] == "true" or response.status_code == 409:
        HOOKS["for a duplicate"]()
    return response


def sent_away(request: HttpRequest) -> HttpResponse:
    """Sends everybody away who is not alone."""
    status = HOOKS["between"]()
    return HttpResponse(status=status) if status else good(request)


urlpatterns = [
    *endpoint_urls.urlpatterns,
    *paths(works_anyway, sent_away, pollable=idempotent(lease=timedelta(minutes=2), in_progress_status=202)(in_steps)),
    path("capture/<int:pk>", capture),
    path("status/", include("django_idempotency.urls")),
]


def only_at_once(action: Callable[[], Any]) -> Callable[[], Any]:
    """Run it in the threads of a race, not in the requests before and after."""
    return lambda: None if current_thread() is main_thread() else action()


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    @pytest.mark.parametrize("path", ["/good", "/asynchronous", "/leased", "/pollable"])
    def test_a_good_endpoint_passes(self, client: Client, path: str) -> None:
        """Two operations: one by one, and together."""
        assert_idempotent(client, path, DATA, creates=Order, transaction=True)
        assert Order.objects.count() == 2

    @pytest.mark.parametrize("path", ["/leased", "/pollable"])
    def test_duplicates_meet_a_running_request(self, client: Client, path: str) -> None:
        """The first one works until it sees that all others were told: by 409, or by 202 and a page to look at."""
        told = Semaphore(0)
        HOOKS["inside"] = only_at_once(lambda: [told.acquire(timeout=30) for _ in range(DUPLICATES - 1)])

        class Telling(Client):
            def post(self, *args: Any, **kwargs: Any) -> Any:
                response = super().post(*args, **kwargs)
                if current_thread() is not main_thread():
                    statuses.append(response.status_code)
                    told.release()
                return response

        statuses: list[int] = []
        assert_idempotent(Telling(), path, DATA, creates=Order, transaction=True, duplicates=DUPLICATES)
        assert sorted(statuses) == {"/leased": [201, 409, 409, 409], "/pollable": [201, 202, 202, 202]}[path]

    def test_an_endpoint_that_takes_a_body_only_once(self, client: Client) -> None:
        """A function gives a new one for the second operation. Each thread has a copy with the client's cookies."""
        bodies = iter([{"entry": "one"}, {"entry": "two"}])
        assert_idempotent(client, "/unique", lambda: next(bodies), creates=Ledger, transaction=True)
        assert set(Ledger.objects.values_list("entry", flat=True)) == {"one", "two"}
        assert_idempotent(logged_in(), "/members", DATA, creates=Order, transaction=True, duplicates=DUPLICATES)

    def test_a_path_that_works_only_once(self, client: Client) -> None:
        """A function gives a new one for the second operation."""
        assert_idempotent(
            client, lambda: f"/capture/{Order.objects.create().pk}", creates=Ledger, transaction=True, duplicates=2
        )
        assert Ledger.objects.count() == Order.objects.count() == 2

    @pytest.mark.parametrize(
        ("creates", "headers"),
        [(Order, {}), (None, {"X-Same-Body": "1"}), (None, {"X-Says-Replay": "1"})],
        ids=["by rows", "by marks", "by bodies"],
    )
    def test_check_then_act(self, fails: Callable[..., str], creates: Any, headers: dict[str, str]) -> None:
        """Executed twice, and only then: everyone has looked before anyone writes. Each evidence is enough."""
        HOOKS["between"] = only_at_once(Barrier(DUPLICATES, timeout=30).wait)
        message = fails(
            "/check_then_act",
            "executed twice at once: more than one of 4 duplicates sent together ran",
            creates=creates,
            headers=headers,
            changed=None,
            transaction=True,
            duplicates=DUPLICATES,
        )
        assert "check, then act" in message
        assert Order.objects.count() == 1 + DUPLICATES

    def test_work_outside_of_what_is_protected(self, fails: Callable[..., str]) -> None:
        """Executed twice, though one answer was first-hand: there are more rows."""
        HOOKS["for a duplicate"] = only_at_once(Order.objects.create)
        message = fails("/works_anyway", "executed twice at once", transaction=True, duplicates=DUPLICATES)
        assert f"It created {DUPLICATES} more Order rows." in message

    @pytest.mark.parametrize(
        ("status", "headline"),
        [
            (409, "none of 4 duplicates sent together did the work."),
            (500, "4 of 4 duplicates sent together were answered with 500."),
        ],
    )
    def test_nobody_gets_through(self, fails: Callable[..., str], status: int, headline: str) -> None:
        """All are sent away."""
        HOOKS["between"] = only_at_once(lambda: status)
        fails("/sent_away", headline, transaction=True, duplicates=DUPLICATES)
