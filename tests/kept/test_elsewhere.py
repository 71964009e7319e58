"""Keys in a backend: what fails, and what follows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.http import HttpResponse

from django_idempotency import PayloadMismatch, StoreBusy, get_operation, run_once
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.protocol.outcomes import ClaimRequest
from django_idempotency.engine.stores.values import claim_value, name_of
from tests.backends import FaultyBackend, evict, no_answer
from tests.elsewhere import NAME, OPTIONS, RUNS, events, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.heard import heard
from tests.http import problem, replayed, same


def counts() -> int:
    return len(RUNS)


# --- the normal case


def test_two_round_trips_for_a_first_request_and_one_for_a_replay() -> None:
    send = posting()
    swaps = []
    for _ in range(2):
        before = FaultyBackend.swaps
        send()
        swaps.append(FaultyBackend.swaps - before)
    assert swaps == [2, 1]


def test_events_and_log_records_name_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    """And no alias."""
    caplog.set_level(logging.INFO, "django_idempotency")
    send = posting()
    with heard() as told:
        send()
        send()
        send(b'{"a": 1}')
    assert events(told) == ["claimed", "completed", "replayed", "mismatched"]
    assert {(one["using"], one["backend"], one["identity"].key) for one in told} == {(None, "events", "k")}
    assert {(vars(one)["database"], vars(one)["backend"]) for one in caplog.records} == {(None, "events")}
    assert told[0]["attempt"] == 1


def test_events_of_run_once_name_the_backend_too(settings: Any) -> None:
    """Also as it is paused: nothing is read or run then, and only the operation is known."""
    paused = [True, False, False, False]
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "PAUSED": lambda: paused.pop()}
    with heard() as told:
        for payload in (1, 1, 2):
            with suppress(PayloadMismatch):
                run_once(counts, scope="s", key="k", payload=payload, backend="events", lease=30)
        with pytest.raises(StoreBusy, match=rf"is on, so {__name__}\.counts did not run"):
            run_once(counts, scope="s", key="k", backend="events", lease=30)
    assert events(told) == ["claimed", "completed", "replayed", "mismatched", "paused"]
    assert {(one["using"], one["backend"], one["identity"].operation) for one in told} == {
        (None, "events", f"{__name__}.counts")
    }
    assert [(one["identity"].scope, one["identity"].key) for one in told] == [*[("s", "k")] * 4, ("", "")]


def test_a_refusal_names_the_backend() -> None:
    """Of a key, and of a replay."""
    send = posting(may_replay=lambda request: False)
    send()
    with heard() as told:
        assert [send(key="").status_code, send().status_code] == [400, 403]
    assert [one["event"] for one in told] == ["invalid", "replay_refused"]
    assert {(one["using"], one["backend"]) for one in told} == {(None, "events")}


def test_a_duplicate_of_a_running_request_is_a_conflict() -> None:
    """With what is left of the lease, and with what the first one refers to, also after the lease was renewed."""
    met: list[Any] = []

    def meets_duplicates(request: Any) -> HttpResponse:
        get_operation(request).refer_to("event", 7)
        met.append(send())
        get_operation(request).renew()
        met.append(send())
        return publish(request)

    send = posting(meets_duplicates)
    assert (send().status_code, len(RUNS)) == (201, 1)
    for refused in met:
        body = json.loads(refused.content)
        assert (refused.status_code, body["code"], body["resource"]) == (
            409, "in-progress", {"type": "event", "id": "7"}
        )  # fmt: skip
        assert 28 <= int(refused.headers["Retry-After"]) <= 30


def test_a_duplicate_waits(backend: FaultyBackend) -> None:
    """Until the other request has ended, or its lease has expired."""
    claim_request = ClaimRequest(
        identity=identify(scope="s", operation="publish", key="k"), fingerprint=None, ttl=60, lease=9
    )
    backend.swap(NAME, None, claim_value("f" * 32, claim_request), 0.3)
    assert (replayed(posting(wait=60)()), len(RUNS)) == ("false", 1)


def test_the_reference_and_headers_are_replayed() -> None:
    def refers(request: Any) -> HttpResponse:
        get_operation(request).refer_to("event", 7)
        return HttpResponse(b"\x00\xff\n", status=202, reason="Taken", headers={"X-Queue": "tea"}, content_type="x/y")

    send = posting(refers)
    with heard("completed", "replayed") as told:
        first, second = send(), send()
    assert (same(first, second), second.reason_phrase, replayed(second)) == (True, "Taken", "true")
    assert [one["resource"] for one in told] == [("event", "7")] * 2


def test_values_of_another_caller_are_never_replayed(backend: FaultyBackend) -> None:
    """Even if they stood under the same name: scope, operation and key are compared."""
    posting()()
    other = name_of(identify(scope="s", operation="publish", key="other"))
    backend._values[other] = backend._values[NAME]
    assert problem(posting()(key="other"))["code"] == "already-used"


def test_a_late_key_is_refused_unless_it_is_known() -> None:
    """By this machine's clock, and without a claim."""
    old = "018bcfe5-6800-7000-8000-000000000000"  # of November 2023
    assert problem(posting(late_keys="refuse")(key=old))["code"] == "key-too-old"
    posting()(key=old)
    assert (replayed(posting(late_keys="refuse")(key=old)), len(RUNS)) == ("true", 1)


def test_a_response_that_is_too_long_leaves_a_tombstone(
    backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some backends limit a value's size, as DynamoDB does to 400 KB. A tombstone fits even if the headers don't."""
    monkeypatch.setattr(FaultyBackend, "max_bytes", 1000)
    headers = {"Location": "/events/1", "X-Long": "x" * 900}
    send = posting(lambda request: HttpResponse(b"x" * 900, status=201, headers=headers))
    first, second = send(), send()
    assert (len(first.content), problem(second)["code"]) == (900, "response-not-stored")
    assert second.headers["Location"] == "/events/1"
    value, _ = backend._values[NAME]
    assert len(value) < 1000


# --- the backend does not answer


def test_a_claim_without_an_answer_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """503, to come back."""
    FaultyBackend.plan = {0: no_answer}
    send = posting()
    with heard() as told:
        refused = send()
    assert (refused.status_code, refused.headers["Retry-After"], RUNS) == (503, "1", [])
    assert (problem(refused)["code"], events(told)) == ("busy", ["busy"])
    assert "does not answer. Nothing has run" in caplog.text
    assert send().status_code == 201


def test_a_claim_that_took_effect_unheard_waits_for_its_lease() -> None:
    """So a lease is short here."""
    FaultyBackend.after = {0: no_answer}
    send = posting()
    assert ([send().status_code, send().status_code], RUNS) == ([503, 409], [])


def test_a_foreign_value_runs_nothing(backend: FaultyBackend, caplog: pytest.LogCaptureFixture) -> None:
    """It is in no format of this release."""
    backend.swap(NAME, None, b"2 of tomorrow", 60)
    assert (posting()().status_code, RUNS) == (503, [])
    assert "a format that this release cannot read" in caplog.text


def test_a_result_that_cannot_be_stored_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    """An error would make the client send again, and the work would run again."""
    FaultyBackend.plan = {1: no_answer}
    send = posting()
    with heard() as told:
        answer = send()
    assert (answer.status_code, replayed(answer), events(told)) == (201, "false", ["claimed", "unstored"])
    assert [record.levelno for record in caplog.records if getattr(record, "event", "") == "unstored"] == [
        logging.ERROR
    ]
    assert "A retry may run the work again" in caplog.text
    assert send().status_code == 409


def test_a_result_that_was_stored_unheard_is_replayed() -> None:
    FaultyBackend.after = {1: no_answer}
    send = posting()
    assert [replayed(send()), replayed(send()), len(RUNS)] == ["false", "true", 1]


@pytest.mark.parametrize("status", [429, 500])
def test_a_key_that_cannot_be_freed_waits_for_its_lease(status: int, caplog: pytest.LogCaptureFixture) -> None:
    FaultyBackend.plan = {1: no_answer}
    send = posting(lambda request: HttpResponse(status=status))
    assert [send().status_code, send().status_code] == [status, 409]
    assert "waits for its lease" in caplog.text


@pytest.mark.parametrize(
    ("end", "reason"),
    [(lambda: 1 / 0, "ZeroDivisionError"), (lambda: HttpResponse(status=429), "The view answered 429.")],
)
def test_work_without_a_result_is_told_as_released(end: Callable[[], Any], reason: str) -> None:
    """With the reason, and with what it refers to."""

    def refers(request: Any) -> HttpResponse:
        get_operation(request).refer_to("event", 7)
        return end()  # type: ignore[no-any-return]

    with heard("released") as told, suppress(ZeroDivisionError):
        posting(refers)()
    (event,) = told
    assert (event["reason"], event["resource"], event["backend"]) == (reason, ("event", "7"), "events")


def test_a_reference_that_was_stored_unheard_does_not_lose_the_key() -> None:
    """The value under the name is of the same token, whatever else is in it."""
    FaultyBackend.after = {1: no_answer}

    def refers_unheard(request: Any) -> HttpResponse:
        with pytest.raises(TimeoutError):
            get_operation(request).refer_to("event", 7)
        return publish(request)

    send = posting(refers_unheard)
    with heard("claim_lost") as told:
        assert [replayed(send()), replayed(send())] == ["false", "true"]
    assert (told, len(RUNS)) == ([], 1)


# --- the claim is gone


def test_a_claim_that_was_evicted_loses_nothing_if_nobody_came() -> None:
    """The result is stored, and somebody is told."""
    FaultyBackend.plan = {1: evict}
    send = posting()
    with heard() as told:
        assert [replayed(send()), replayed(send())] == ["false", "true"]
    assert events(told) == ["claimed", "claim_lost", "completed", "replayed"]


def overtaken(backend: FaultyBackend, end: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A view whose claim is evicted; a duplicate runs to its end; then the late worker goes on with `end`."""

    def is_overtaken(request: Any) -> Any:
        if RUNS:
            return publish(request)
        RUNS.append("late")
        evict(backend, NAME)
        posting()()
        return end(request)

    return is_overtaken


def raising(error: BaseException) -> Callable[[Any], Any]:
    def end(request: Any) -> Any:
        raise error

    return end


@pytest.mark.parametrize(
    "end",
    [
        lambda request: HttpResponse("late", status=201),
        lambda request: HttpResponse(status=500),
        raising(ZeroDivisionError("bug")),
        lambda request: get_operation(request).renew(),
    ],
    ids=["final", "not final", "raises", "renews"],
)
def test_a_late_worker_gets_the_winners_result(backend: FaultyBackend, end: Any) -> None:
    """However it ends. Nothing of its own is stored, and somebody is told that the work has run twice."""
    send = posting(overtaken(backend, end))
    with heard("claim_lost") as told:
        answer = send()
    assert [event["identity"].key for event in told] == ["k"]
    assert (answer.content, replayed(answer)) == (b"event 2", "true")
    assert (send().content, len(RUNS)) == (b"event 2", 2)


def test_a_late_worker_gets_a_conflict_while_the_winner_runs(backend: FaultyBackend) -> None:
    claim_request = ClaimRequest(
        identity=identify(scope="s", operation="publish", key="k"), fingerprint=None, ttl=60, lease=9
    )

    def loses_its_claim(request: Any) -> HttpResponse:
        evict(backend, NAME)
        backend.swap(NAME, None, claim_value("f" * 32, claim_request), 9)
        return publish(request)

    with heard() as told:
        answer = posting(loses_its_claim)()
    assert (answer.status_code, problem(answer)["code"], answer.headers["Retry-After"]) == (409, "in-progress", "9")
    assert events(told) == ["claimed", "claim_lost", "conflicted"]


@pytest.mark.parametrize("ending", ["freed", "silent"])
def test_a_late_worker_whose_winner_is_gone_gets_a_conflict(
    backend: FaultyBackend, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The winner freed the key in between, or the backend does not say, which is in the log."""

    def loses_its_claim(request: Any) -> Any:
        evict(backend, NAME)
        backend.swap(NAME, None, b"1" + b"f" * 32 + b"{}\n", 60)
        if ending == "freed":
            FaultyBackend.plan = {FaultyBackend.swaps + 1: evict}
        else:
            FaultyBackend.plan = {FaultyBackend.swaps + 1: no_answer}
        return publish(request)

    assert (posting(loses_its_claim)().status_code, len(RUNS)) == (409, 1)
    assert ("does not say who has taken over" in caplog.text) is (ending == "silent")


def test_a_cancelled_late_worker_stays_cancelled(backend: FaultyBackend) -> None:
    with pytest.raises(KeyboardInterrupt):
        posting(overtaken(backend, raising(KeyboardInterrupt())))()
    assert posting()().content == b"event 2"
