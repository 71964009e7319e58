"""A release after this one that compares, encrypts and stores in another way: both run on the same keys.

The next release replays, refuses, continues and settles each key of this one. What this one meets of the next, it
refuses, or decides as the next one would; it runs nothing again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_idempotency import NotDecryptable, PayloadMismatch, idempotent, run_once
from django_idempotency.maintenance import (
    Snapshot,
    close_with,
    find_in_backend,
    forget,
    in_doubt,
    record_outcome,
    release_for_retry,
)
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests import admin_urls
from tests.admin_pages import decide, staff
from tests.at_rest import NEW, OLD
from tests.backends import KINDS, SERVERS, configured
from tests.http import problem, replayed
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks, lapse, row
from tests.next_release import by_the_next, by_this
from tests.resolving import resolve
from tests.shopapp.models import Order
from tests.works import RUNS, charge_and_place, place

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
RELEASES = {"this": by_this, "next": by_the_next}


@idempotent()
def order(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"order {Order.objects.create(reference='o').pk}", status=201)


@idempotent(backend="events", lease=30)
def publish(request: HttpRequest) -> HttpResponse:
    RUNS.append("published")
    HOOKS.get("publishing", lambda: None)()
    return HttpResponse(f"event {len(RUNS)}", status=201, headers={"X-Event": "ä"})


urlpatterns = [
    path("order", order),
    path("publish", publish),
    *admin_urls.urlpatterns,
]


@pytest.fixture(autouse=True, params=[[OLD], None], ids=["encrypted", "plain"])
def encrypted(request: Any, settings: Any) -> Iterator[bool]:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": request.param}
    GATEWAY.reset()
    HOOKS.clear()
    RUNS.clear()
    yield request.param is not None
    HOOKS.clear()


def refused_by_this(act: Callable[[], Any], *, encrypted: bool) -> None:
    """A response of the next release in a row of this one is replayed, or can't be decrypted."""
    if encrypted:
        with pytest.raises(NotDecryptable, match=r"was encrypted by a newer release, as 'enc2:', and this one knows"):
            act()
    else:
        assert replayed(act()) == "true"


# --- in the table


@pytest.mark.parametrize("path", ["/order", "/pay"])
def test_the_next_release_replays_and_refuses_what_this_one_has_stored(post: Post, path: str) -> None:
    """Byte for byte; and another request is still another."""
    first = post(path, {"a": 1})
    again = by_the_next(lambda: post(path, {"a": 1}))
    other = by_the_next(lambda: post(path, {"a": 2}))
    assert (again.status_code, again.content, replayed(again)) == (201, first.content, "true")
    assert (other.status_code, problem(other)["code"]) == (422, "already-used")
    assert Order.objects.count() == 1


@pytest.mark.parametrize("path", ["/order", "/pay"])
def test_this_release_runs_nothing_that_the_next_one_has_completed(post: Post, path: str) -> None:
    """It can't tell whether the request is the same, so it says that the key is used. The next release replays."""
    first = by_the_next(lambda: post(path, {"a": 1}))
    old = post(path, {"a": 1})
    assert (old.status_code, problem(old)["code"], problem(old)["meaning"]) == (422, "already-used", "look-up")
    assert replayed(by_the_next(lambda: post(path, {"a": 1}))) == "true"
    assert first.status_code == 201
    assert Order.objects.count() == 1


@pytest.mark.parametrize("payload", [{"a": 1.0}, b"bytes"])
def test_the_next_release_knows_the_payloads_of_run_once(payload: Any) -> None:
    one = run_once(place, scope="s", key="k", payload=payload)
    two = by_the_next(lambda: run_once(place, scope="s", key="k", payload=payload))
    assert (one.replayed, two.replayed, one.value) == (False, True, two.value)
    with pytest.raises(PayloadMismatch):
        by_the_next(lambda: run_once(place, scope="s", key="k", payload="another"))
    assert len(RUNS) == 1


def test_what_project_code_compares_is_known(post: Post) -> None:
    """`fingerprint=` with a callable, with fields, and with None."""
    for name, options in {
        "bytes": {"fingerprint": lambda request: request.body[:4]},
        "fields": {"fingerprint": ("a",)},
        "target": {"fingerprint": None},
    }.items():
        view = idempotent(**options, operation=name)(lambda request: place() and HttpResponse("placed"))
        request = post("/order", {"a": 1}, key=name).wsgi_request
        answers = [by(lambda request=request, view=view: view(request)) for by in (by_this, by_the_next)]
        assert [replayed(answer) for answer in answers] == ["false", "true"]


@pytest.mark.parametrize("first", RELEASES)
def test_a_running_key_is_a_conflict_for_either(post: Post, first: str) -> None:
    """While the view of one release runs, its duplicate reaches the other one."""
    one, other = RELEASES[first], RELEASES["next" if first == "this" else "this"]
    met: list[Any] = []
    HOOKS["between"] = lambda operation: met.append(other(lambda: post("/pay")))
    assert one(lambda: post("/pay")).status_code == 201
    assert [(answer.status_code, problem(answer)["code"]) for answer in met] == [(409, "in-progress")]
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


def half_done(post: Post) -> None:
    """The charge is made, and then the view breaks."""
    HOOKS["between"] = breaks
    with pytest.raises(Broken):
        post("/pay")
    HOOKS.clear()


@pytest.mark.parametrize("died", [False, True])
def test_the_next_release_continues_from_the_steps(post: Post, died: bool) -> None:
    """It reads the charge's result, and doesn't make the call again; its response is then its own kind."""
    half_done(post)
    if died:
        as_if_killed()
    answer = by_the_next(lambda: post("/pay"))
    assert (answer.status_code, answer.json()["attempt"]) == (201, 2)
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)
    assert replayed(by_the_next(lambda: post("/pay"))) == "true"


def test_another_request_is_not_continued(post: Post) -> None:
    half_done(post)
    assert by_the_next(lambda: post("/pay", {"a": 2})).status_code == 422
    assert (GATEWAY.calls, Order.objects.count()) == (1, 0)


def test_this_release_continues_nothing_that_the_next_one_has_begun(post: Post) -> None:
    """To this one, the request is another, so no call is made again."""
    by_the_next(lambda: half_done(post))
    assert post("/pay").status_code == 422
    lapse()
    assert post("/pay").status_code == 422
    assert (GATEWAY.calls, Order.objects.count()) == (1, 0)
    assert by_the_next(lambda: post("/pay")).status_code == 201
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


def test_a_key_that_both_have_worked_on_is_run_by_neither_twice(post: Post, encrypted: bool) -> None:
    """The row has this release's fingerprint, and steps and a response of the next one."""
    half_done(post)
    HOOKS["at the end"] = breaks
    with pytest.raises(Broken):
        by_the_next(lambda: post("/pay"))
    HOOKS.clear()
    if encrypted:  # the second step is not readable here
        with pytest.raises(NotDecryptable):
            post("/pay")
        assert by_the_next(lambda: post("/pay")).status_code == 201
    else:
        assert post("/pay").status_code == 201
    refused_by_this(lambda: post("/pay"), encrypted=encrypted)
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


def test_a_late_worker_of_this_release_is_fenced_by_the_next_one(post: Post, encrypted: bool) -> None:
    """Its lease has lapsed, the next release has taken over, and its write comes too late."""

    def taken_over(operation: Any) -> None:
        if operation.attempt == 1:
            lapse()
            assert by_the_next(lambda: post("/pay")).json()["attempt"] == 2

    HOOKS["between"] = taken_over
    refused_by_this(lambda: post("/pay"), encrypted=encrypted)
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


# --- settled


def hold(post: Post) -> IdempotencyKey:
    """The call was made, and nobody knows what came of it."""
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold")
    GATEWAY.after = lambda: None
    return in_doubt().get()


def recorded(post: Post) -> None:
    record_outcome(row(), "charge", {"charge": "found"}, by="bob", reason="asked")


def closed(post: Post) -> None:
    close_with(row(), Snapshot(status_code=201, headers=(), body=b'{"charge": "found"}'), by="bob", reason="asked")


def closed_by_command(post: Post) -> None:
    words = ("--operation=POST pay/hold", "--close=201", "--body={}", "--finished-calls-are-settled", "--apply")
    assert resolve(*words)[0] == 0


def recorded_in_the_admin(post: Post) -> None:
    operator = staff("view_idempotencykey", "view_response", "resolve_idempotencykey")
    assert "enc1:" not in decide(operator, row(), "record", result='{"charge": "found"}')


def released(post: Post) -> None:
    release_for_retry(row(), by="bob", reason="asked")


DECISIONS = {
    "recorded": recorded,
    "recorded in the admin": recorded_in_the_admin,
    "closed": closed,
    "closed by command": closed_by_command,
    "released": released,
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_next_release_settles_what_this_one_has_left(post: Post, decision: str) -> None:
    """By a function, the command or the admin. The trail says so, and the retry gets what was decided."""
    hold(post)
    by_the_next(lambda: DECISIONS[decision](post))
    answer = by_the_next(lambda: post("/pay/hold"))
    assert (answer.status_code, replayed(answer)) == (201, "true" if "closed" in decision else "false")
    assert (GATEWAY.calls, len(GATEWAY.charges)) == (2 if decision == "released" else 1, 1)
    assert len(by_the_next(lambda: decisions_of(row()))) == 1


@pytest.mark.parametrize("decision", DECISIONS)
def test_this_release_follows_what_the_next_one_has_decided(post: Post, decision: str, encrypted: bool) -> None:
    """Or says that it can't read it. It makes no call that is settled."""
    hold(post)
    by_the_next(lambda: DECISIONS[decision](post))
    if encrypted and decision != "released":
        with pytest.raises(NotDecryptable):
            post("/pay/hold")
    else:
        assert post("/pay/hold").status_code == 201
    assert (GATEWAY.calls, len(GATEWAY.charges)) == (2 if decision == "released" else 1, 1)


def test_this_release_settles_what_the_next_one_has_left(post: Post) -> None:
    """Its trail is kept as it is if it can't be read."""
    by_the_next(lambda: hold(post))
    closed(post)
    answer = by_the_next(lambda: post("/pay/hold"))
    assert (answer.status_code, replayed(answer), GATEWAY.calls) == (201, "true", 1)


def test_a_rotation_goes_on_across_the_releases(post: Post, settings: Any, encrypted: bool) -> None:
    """A new encryption key in front, and then the next release: it opens what both keys have sealed."""
    if encrypted:
        first = post("/order")
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW, OLD]}
        assert by_the_next(lambda: post("/order")).content == first.content


def test_leased_work_of_run_once(encrypted: bool) -> None:
    one = run_once(charge_and_place, scope="s", key="k", lease=60, operation="pay", payload={"a": 1})
    two = by_the_next(
        lambda: run_once(charge_and_place, scope="s", key="k", lease=60, operation="pay", payload={"a": 1})
    )
    assert (two.replayed, two.value) == (True, one.value)
    stored = IdempotencyStep.objects.values_list("result", flat=True)
    assert {str(text).startswith("enc1:") for text in stored} == {encrypted}


# --- in each backend


@pytest.fixture(params=[pytest.param(kind, marks=SERVERS.get(kind, ())) for kind in KINDS])
def backend(request: Any, settings: Any) -> None:
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "BACKENDS": {"events": configured(request.param)}}


def test_a_backend_s_result_is_replayed_and_refused_by_the_next_release(post: Post, backend: None) -> None:
    first = post("/publish", {"a": 1})
    again = by_the_next(lambda: post("/publish", {"a": 1}))
    other = by_the_next(lambda: post("/publish", {"a": 2}))
    assert (again.content, again["X-Event"], replayed(again)) == (first.content, first["X-Event"], "true")
    assert (other.status_code, RUNS) == (422, ["published"])


def test_a_backend_s_result_of_the_next_release_is_busy_for_this_one(post: Post, backend: None) -> None:
    """It finds the value under the same name, and can't read it: 503, nothing runs, and the value stays."""
    by_the_next(lambda: post("/publish"))
    answer = post("/publish")
    assert (answer.status_code, problem(answer)["code"], answer["Retry-After"]) == (503, "busy", "1")
    assert replayed(by_the_next(lambda: post("/publish"))) == "true"
    assert RUNS == ["published"]


@pytest.mark.parametrize("first", RELEASES)
def test_a_backend_s_running_key_is_refused_by_the_other_release(post: Post, backend: None, first: str) -> None:
    """And its worker stores its result all the same."""
    one, other = RELEASES[first], RELEASES["next" if first == "this" else "this"]
    met: list[Any] = []
    HOOKS["publishing"] = lambda: met.append(other(lambda: post("/publish")))
    assert one(lambda: post("/publish")).status_code == 201
    assert [answer.status_code for answer in met] == [409 if first == "this" else 503]
    assert replayed(one(lambda: post("/publish"))) == "true"
    assert RUNS == ["published"]


def test_an_operator_s_look_into_a_backend(backend: None, settings: Any) -> None:
    """The next release finds and forgets what this one has stored."""
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY}
    about = {"scope": "s", "operation": "tests.works.place", "key": "look"}
    run_once(place, scope="s", key="look", backend="events", lease=30)
    found = by_the_next(lambda: find_in_backend("events", **about))
    assert found is not None
    assert (found.status, found.status_code) == ("completed", 200)
    assert by_the_next(lambda: forget("s", "look", operation=about["operation"], backend="events")).deleted == 1


def test_the_headers_of_a_stored_response_are_one_line_of_json(post: Post, encrypted: bool) -> None:
    """What any later release has to read."""
    post("/order")
    assert encrypted or isinstance(json.loads(row().headers or ""), list)
