"""One key of a backend: looked up and forgotten, by function and by command; and the memory of a test."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import path
from prometheus_client import CollectorRegistry

from django_idempotency import Idempotency, IdempotencyConfigurationError, get_operation, idempotent, metrics
from django_idempotency.backends import KeyValueBackend
from django_idempotency.endpoints.specification import facts
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.digests import stored_scope
from django_idempotency.maintenance import Forgotten, KeyInBackend, find_in_backend, forget
from django_idempotency.signals import key_event
from django_idempotency.testing import assert_idempotent, clear_backends
from tests.backends import MEMORY
from tests.elsewhere import OPTIONS, RUNS, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.http import replayed

KEY = {"scope": "s", "operation": "publish", "key": "k"}


def told(*args: str) -> tuple[int, str]:
    """The exit status, and what was printed; an error's text stands at the end."""
    out = io.StringIO()
    try:
        call_command("forget_idempotency_keys", "--scope=s", "--backend=events", *args, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def test_a_key_is_found_only_by_its_whole_identity() -> None:
    posting()()
    assert find_in_backend("events", **KEY) == KeyInBackend(status="completed", status_code=201, resource=None)
    assert [find_in_backend("events", **{**KEY, name: "other"}) for name in KEY] == [None] * 3


def test_a_key_in_progress_is_kept() -> None:
    """With what it refers to. Whoever knows that its worker is dead can forget it all the same."""
    met: list[Any] = []

    def looks_at_its_key(request: Any) -> Any:
        get_operation(request).refer_to("event", 7)
        met.append(find_in_backend("events", **KEY))
        met.append(forget("s", "k", operation="publish", backend="events"))
        met.append(told("--key=k", "--operation=publish", "--apply"))
        met.append(forget("s", "k", operation="publish", backend="events", include_unsettled=True, dry_run=True))
        return publish(request)

    posting(looks_at_its_key)()
    found, kept, printed, unsettled = met
    assert found == KeyInBackend(status="in_progress", status_code=None, resource=("event", "7"))
    assert [(one.deleted, one.kept) for one in (kept, unsettled)] == [(0, 1), (1, 0)]
    assert printed == (
        3,
        "In 'events': in_progress, about event 7.\nForgot 0 keys of s.\n"
        "Kept, because they are in progress, in doubt or half done: 1 key.",
    )


def test_a_forgotten_key_runs_again() -> None:
    """By command; without --apply it only looks."""
    posting()()
    shown = "In 'events': completed with 201.\n"
    one = ("--key=k", "--operation=publish")
    assert told(*one) == (0, f"{shown}Would forget 1 key of s. Add --apply to do it.\n")
    assert replayed(posting()()) == "true"
    assert told(*one, "--apply") == (0, f"{shown}Forgot 1 key of s.\n")
    assert told(*one, "--apply") == (0, "Forgot 0 keys of s.\n")
    assert forget("s", "k", operation="publish", backend="events") == Forgotten(deleted=0, kept=0)
    assert (replayed(posting()()), len(RUNS)) == ("false", 2)


def test_a_long_scope_is_found_as_it_is_stored_and_as_it_is_returned() -> None:
    scope = "s" * 300
    posting(scope=lambda request: scope)()
    found = [find_in_backend("events", **{**KEY, "scope": text}) for text in (scope, stored_scope(scope))]
    assert found == [KeyInBackend(status="completed", status_code=201, resource=None)] * 2


@pytest.mark.parametrize("args", [("--key=k",), ("--operation=publish",), ()])
def test_a_backend_has_no_lists(args: tuple[str, ...]) -> None:
    if args == ("--operation=publish",):
        assert told(*args) == (1, "--operation needs --key.")
    else:
        assert told(*args) == (1, "--backend needs --key and --operation: a backend has no list of its keys.")
    with pytest.raises(IdempotencyConfigurationError, match=r"^a key in a backend is found only by scope, operation"):
        forget("s", "k", backend="events")


class Kept(KeyValueBackend):
    """No memory of this process."""


def test_tests_forget_the_memory(settings: Any) -> None:
    """Of each backend that keeps its keys there, and of no other."""
    settings.IDEMPOTENCY = {"BACKENDS": {"events": MEMORY, "other": {"BACKEND": f"{__name__}.Kept"}}}
    posting()()
    clear_backends()
    assert (replayed(posting()()), replayed(posting()())) == ("false", "true")


def test_an_endpoint_is_proved(settings: Any, client: Any) -> None:
    """Without a row and without a database; the metrics count by the name of the operation."""
    urls: Any = ModuleType("urls_of_backends")
    urls.urlpatterns = [path("publish", idempotent(**OPTIONS)(publish))]
    settings.ROOT_URLCONF = urls
    registry = CollectorRegistry()
    before = list(key_event.receivers)
    try:
        metrics.install(registry=registry)
        assert_idempotent(client, "/publish", {"a": 1}, creates=lambda: len(RUNS), backend="events")
    finally:
        key_event.receivers = before
        key_event.sender_receivers_cache.clear()
    counted = {"operation": "publish", "outcome": "completed"}
    assert registry.get_sample_value("idempotency_key_outcomes_total", counted) == 1


def test_clients_are_told_the_promise() -> None:
    """In the list for clients, and in OpenAPI, whose schemas have the same facts."""
    told = facts(resolve(Idempotency(backend="events", lease=30)))
    assert next(iter(told.items())) == (
        "Promise",
        "A request runs at least once. Its key is kept in 'events'; while it is there, no retry runs.",
    )
    assert "Promise" not in facts(resolve())
