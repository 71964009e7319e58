"""A mode is one module: the one here is registered, and every adapter and `run_once` run work in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import pytest

from django_idempotency import IdempotencyConfigurationError, run_once
from django_idempotency.endpoints import list_endpoints
from django_idempotency.engine.conf import modes
from django_idempotency.engine.execution.operation import Operation
from django_idempotency.engine.execution.runners import Runner, Work
from django_idempotency.engine.execution.steps import NoSteps
from django_idempotency.engine.protocol.outcomes import (
    ClaimRequest,
    Completed,
    Finished,
    Mismatched,
    Outcome,
    Snapshot,
)
from tests.contracts.adapters import Adapter, Answer, all_adapters, marks
from tests.heard import heard

T = TypeVar("T")
KEPT: dict[int, tuple[bytes | None, Snapshot]] = {}
RUNS: list[int] = []


class InADict(Runner):
    """Runs the work at once, and keeps its result in a dict."""

    possible: ClassVar = {"wait": (0,)}
    misfit = "means nothing for keys in a dict. Leave %s out."

    @staticmethod
    def suits(backend: str | None, lease: Any) -> bool:
        return backend == "dict"

    def alias(self) -> None:
        return None

    def described(self) -> str:
        return "in a dict"

    def journal(self, operation: str) -> NoSteps:
        return NoSteps("a dict has no steps.")

    def run(self, store: None, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        kept = KEPT.get(request.identity.scope_hash)
        if kept is not None:
            return Completed(snapshot=kept[1]) if kept[0] == request.fingerprint else Mismatched()
        try:
            finished: Finished[T] | None = work.run(Operation(request.identity, journal=self.journal("")))
        except Exception as error:
            if (finished := work.answer(error)) is None:
                raise
        if finished.final is not None:
            KEPT[request.identity.scope_hash] = request.fingerprint, finished.final
        return finished


@pytest.fixture(autouse=True)
def _registered(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(modes, "REGISTERED", [f"{__name__}.InADict", *modes.REGISTERED])
    modes.registered.cache_clear()
    settings.IDEMPOTENCY = {}
    KEPT.clear()
    RUNS.clear()
    yield
    modes.registered.cache_clear()


@pytest.fixture(params=all_adapters(), ids=lambda adapter: type(adapter).__name__)
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    with request.param.serving():
        yield request.param


def ordered(request: Any) -> Answer:
    RUNS.append(1)
    return Answer(201, f'{{"order": {len(RUNS)}}}', {})


def test_it_runs_once_and_is_replayed(adapter: Adapter) -> None:
    """No test here may use the database, so the keys can't be there."""
    send = adapter.protect(ordered, backend="dict")
    with heard() as events:
        sent = [send("k", {"a": 1}) for _ in range(2)]
        assert marks([*sent, send("k", {"a": 2})])[:2] == [(201, "false"), (201, "true")]
    assert (sent[0].kept, len(RUNS)) == (sent[1].kept, 1)
    assert [(each["event"], each["using"], each["backend"]) for each in events] == [
        ("completed", None, "dict"),
        ("replayed", None, "dict"),
        ("mismatched", None, "dict"),
    ]


def test_it_is_observed(adapter: Adapter, caplog: pytest.LogCaptureFixture) -> None:
    """Only a database's keys can be: each request runs, and no other database is asked instead."""
    if adapter.http:
        send = adapter.protect(ordered, backend="dict", observe=True)
        assert [send("k", {"a": 1}).status for _ in range(2)] == [201, 201]
        assert (len(RUNS), caplog.text.count("Observing an idempotency key failed")) == (2, 2)
        assert "Database access not allowed" not in caplog.text


def test_an_option_that_does_not_fit_is_refused() -> None:
    with pytest.raises(IdempotencyConfigurationError, match=r"wait=5 means nothing for keys in a dict\. Leave wait"):
        run_once(len, scope="s", key="k", operation="o", backend="dict", wait=5)


def test_the_list_of_endpoints_names_it(adapter: Adapter) -> None:
    adapter.protect(ordered, backend="dict")
    if adapter.http:
        assert {each.mode for each in list_endpoints(adapter.urls) if each.method == "POST"} == {"in a dict"}  # type: ignore[arg-type]
