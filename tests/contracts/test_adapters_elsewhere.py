"""The contract of the adapters for keys in a backend: the same facts for each way to protect an operation.

No test here may use the database, so whatever the package asked of it would be an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from django_idempotency.endpoints import list_endpoints
from tests.backends import KINDS, SERVERS, configured
from tests.contracts.adapters import Adapter, Answer, Function, Once, Refusal, all_adapters, code, marks
from tests.heard import heard

RUNS: list[int] = []


def placed(able: Any = lambda adapter: True, everywhere: bool = False) -> Any:
    """A fixture: the adapters that can, with their keys in memory; or everywhere: some of them elsewhere, too."""
    few = (Function, Once)
    places = [
        pytest.param((kind, adapter), id=f"{kind}-{type(adapter).__name__}", marks=SERVERS.get(kind, ()))
        for kind in (KINDS if everywhere else ("memory",))
        for adapter in all_adapters()
        if able(adapter) and (kind == "memory" or type(adapter) in few)
    ]

    @pytest.fixture(params=places)
    def serving(request: Any, settings: Any) -> Iterator[Adapter]:
        kind, adapter = request.param
        settings.IDEMPOTENCY = {"BACKENDS": {"events": configured(kind)}}
        RUNS.clear()
        with adapter.serving():
            yield adapter

    return serving


adapter = placed(everywhere=True)
http = placed(lambda adapter: type(adapter).__name__ in ("Function", "AsyncFunction", "RestFramework", "Ninja"))
"""What no framework has a part in."""
answering = placed(lambda adapter: adapter.answers_exceptions)


def elsewhere(adapter: Adapter, work: Any, **options: Any) -> Any:
    """Send requests under one key that no other test has."""
    send, key = adapter.protect(work, **{"backend": "events", "lease": 30, **options}), str(uuid4())
    return lambda data=None, **how: send(how.pop("key", key), data, **how)


def event(status: int = 201) -> Answer:
    RUNS.append(len(RUNS))
    body = json.dumps({"published": len(RUNS)})
    return Answer(status, body, {"Location": f"/events/{len(RUNS)}", "X-Queue": "tea"} if status < 300 else {})


def publish(request: Any) -> Answer:
    return event()


def test_it_runs_once_and_is_replayed_byte_for_byte(adapter: Adapter) -> None:
    """Status, body and headers."""
    send = elsewhere(adapter, publish)
    sent = [send() for _ in range(3)]
    assert marks(sent) == [(201, "false"), (201, "true"), (201, "true")]
    assert sent[0].kept == sent[1].kept == sent[2].kept
    assert (sent[0].headers["Location"], len(RUNS)) == ("/events/1", 1)


def test_another_payload_is_a_mismatch_and_another_key_is_not(adapter: Adapter) -> None:
    send = elsewhere(adapter, publish)
    sent = [send({"a": 1}), send({"a": 2}), send({"a": 2}, key=str(uuid4())), send({"a": 1})]
    assert [answer.status for answer in sent] == [201, 422, 201, 201]
    assert (sent[3].kept, sent[3].replayed, len(RUNS)) == (sent[0].kept, "true", 2)


def test_two_callers_are_two_keys(http: Adapter) -> None:
    """Under the same key, neither sees what the other got."""
    send = elsewhere(http, publish)
    sent = [send(headers={"X-Api-Key": caller}) for caller in ("ada", "bob", "ada", "bob")]
    assert [answer.replayed for answer in sent] == ["false", "false", "true", "true"]
    assert sent[0].kept == sent[2].kept != sent[1].kept == sent[3].kept


@pytest.mark.parametrize("status", [429, 500])
def test_an_answer_that_is_not_final_frees_the_key(http: Adapter, status: int) -> None:
    send = elsewhere(http, lambda request: event(status))
    assert (marks([send(), send()]), len(RUNS)) == ([(status, "false")] * 2, 2)


def test_an_exception_frees_the_key(adapter: Adapter) -> None:
    """It goes on as without the package."""

    def broken(request: Any) -> Answer:
        RUNS.append(1)
        raise ZeroDivisionError("bug")

    send = elsewhere(adapter, broken)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="bug"):
            send()
    assert len(RUNS) == 2


@pytest.mark.parametrize(("status", "runs"), [(402, 1), (503, 2)])
def test_the_framework_answers_an_exception(answering: Adapter, status: int, runs: int) -> None:
    """A final answer is kept, every other frees the key, and the exception is told as the reason."""

    def refuse(request: Any) -> Answer:
        RUNS.append(1)
        raise Refusal(status)

    send = elsewhere(answering, refuse)
    with heard("released") as told:
        assert [answer.status for answer in (send(), send())] == [status] * 2
    assert len(RUNS) == runs
    reasons = {one["reason"].rpartition(".")[2] for one in told}
    assert (len(told), reasons <= {"Refusal", "APIException"}) == (0 if status == 402 else 2, True)


def test_without_its_body_the_answer_leaves_a_tombstone(http: Adapter) -> None:
    """409, with the first Location, and nothing runs again."""
    send = elsewhere(http, publish, max_body_bytes=5)
    sent = [send(), send()]
    assert ([answer.status for answer in sent], code(sent[1])) == ([201, 409], "response-not-stored")
    assert (sent[1].headers["Location"], len(RUNS)) == ("/events/1", 1)


def test_may_replay_is_asked_before_a_replay(http: Adapter) -> None:
    send = elsewhere(http, publish, may_replay=lambda *asked: False)
    assert ([answer.status for answer in (send(), send())], len(RUNS)) == ([201, 403], 1)


def test_switched_off_it_runs_each_time(adapter: Adapter, settings: Any) -> None:
    """As if the package were not there."""
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "ENABLED": False}
    send = elsewhere(adapter, publish)
    assert ([answer.replayed for answer in (send(), send())], len(RUNS)) == (
        [None if adapter.http else "false"] * 2,
        2,
    )


def test_the_list_of_endpoints_shows_where_its_keys_are(http: Adapter) -> None:
    elsewhere(http, publish)
    listed = list_endpoints(http.urls)  # type: ignore[arg-type]
    assert "at least once, in 'events'" in {endpoint.mode for endpoint in listed if endpoint.method == "POST"}
