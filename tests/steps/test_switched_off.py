"""Whatever is switched off, the gateway gets the key that it got before: derived from the caller's key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

from django_idempotency import get_operation, idempotent, run_once
from django_idempotency.checks import check_project
from django_idempotency.engine import events
from django_idempotency.keys import derived_key
from django_idempotency.models import IdempotencyKey
from tests.heard import heard
from tests.servers import fake_gateway

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.steps.test_switched_off")]
OFF = {"ENABLED": False}


def charge(request: HttpRequest) -> HttpResponse:
    return HttpResponse(get_operation(request).derive_key("charge"))


async def acharge(request: HttpRequest) -> HttpResponse:
    return charge(request)


def charge_at_the_gateway(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    headers = {"Idempotency-Key": operation.derive_key("charge")}
    order = {"amount": 1, "reference": request.headers["X-Client"]}
    operation.call("charge", lambda: HOOKS["gateway"].post("/charges", json=order, headers=headers).status_code)
    return HttpResponse(status=201)


HOOKS: dict[str, Any] = {}
VIEWS = {"atomic": idempotent(charge), "leased": idempotent(lease=60)(charge), "async": idempotent(acharge)}
OBSERVED = {
    f"observed/{name}": idempotent(observe=True, lease=lease)(charge) for name, lease in {"a": None, "l": 60}.items()
}
OBSERVED["observed/refused"] = idempotent(observe=True)(charge)
OPTIONAL = idempotent(required=False, anonymous="refuse")(charge)
OTHERS = {"optional": OPTIONAL, "pay": idempotent(lease=60)(charge_at_the_gateway)}
urlpatterns = [path(name, view) for name, view in {**VIEWS, **OBSERVED, **OTHERS}.items()]


@pytest.fixture(autouse=True)
def _nothing_is_said_yet(caplog: pytest.LogCaptureFixture) -> None:
    events.unprotected.cache_clear()
    caplog.set_level(logging.WARNING, logger="django_idempotency")


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("switch", "charges", "runs"), [("ENABLED", 5, 15), ("PAUSED", 0, 0), (None, 5, 5)])
def test_the_gateway_charges_each_client_once(
    client: Any, settings: Any, switch: str | None, charges: int, runs: int
) -> None:
    """By its own book: five clients send their request three times. Switched off, only the gateway's memory helps."""
    settings.IDEMPOTENCY = {None: {}, "ENABLED": OFF, "PAUSED": {"PAUSED": True}}[switch]
    with fake_gateway() as HOOKS["gateway"]:
        asked = []
        HOOKS["gateway"].event_hooks = {"request": [asked.append]}
        for number in [*range(5)] * 3:
            client.post("/pay", headers={"Idempotency-Key": f"k{number}", "X-Client": f"c{number}"})
        assert len(asked) == runs
        assert len(HOOKS["gateway"].get("/charges").json()["charges"]) == charges


@pytest.mark.parametrize("paused", [True, lambda: True])
def test_a_pause_is_for_the_protected_methods(client: Any, settings: Any, paused: Any) -> None:
    """A page can still be read."""
    settings.IDEMPOTENCY = {"PAUSED": paused}
    assert [getattr(client, method)("/atomic").status_code for method in ("get", "put", "post")] == [200, 200, 503]


@pytest.mark.parametrize(
    ("setting", "name", "why"),
    [(OFF, "atomic", "ENABLED is False"), ({}, "observed/a", "observe is True"), (OFF, None, "ENABLED is False")],
)
def test_the_log_says_so_once_an_operation(
    post: Post, client: Any, settings: Any, caplog: pytest.LogCaptureFixture, setting: Any, name: str | None, why: str
) -> None:
    """In each process, at its first request. A request that is not protected anyway says nothing."""
    settings.IDEMPOTENCY = setting
    for key in ("a", "b"):
        if name is None:
            run_once(lambda: 1, scope="s", operation="job", key=key)
        else:
            post(f"/{name}", key=key)
            client.put(f"/{name}")
    said = [r.getMessage() for r in caplog.records if "without" in r.getMessage()]
    operation = "job" if name is None else f"POST {name}"
    assert said == [f"{operation} runs without protection, because {why}: each retry runs again."]


@pytest.mark.parametrize(
    ("setting", "name", "why"),
    [
        *((OFF, name, "ENABLED is False") for name in VIEWS),
        ({}, "observed/a", "observe is True"),
        (OFF, None, "ENABLED is False"),
    ],
)
def test_each_request_that_runs_unprotected_is_an_event(
    post: Post, client: Any, settings: Any, setting: Any, name: str | None, why: str
) -> None:
    """Of its operation, with what is switched off. Requests that are not protected anyway are none."""
    settings.IDEMPOTENCY = setting
    with heard() as told:
        for _ in range(2):
            if name is None:
                run_once(lambda: 1, scope="s", operation="job", key="k")
            else:
                post(f"/{name}")
                client.put(f"/{name}")
    assert [(one["event"], one["identity"].operation, one["identity"].key, one["reason"]) for one in told] == [
        ("unprotected", "job" if name is None else f"POST {name}", "", why)
    ] * 2


@pytest.mark.parametrize(
    ("setting", "messages"),
    [
        (OFF, ["IDEMPOTENCY['ENABLED'] is False: no request is protected, and each retry runs again."]),
        ({"OBSERVE": True}, ["IDEMPOTENCY['OBSERVE'] is True: each retry runs again."]),
        ({"PAUSED": True}, ["IDEMPOTENCY['PAUSED'] is True: every request to a protected endpoint gets 503."]),
        ({"PAUSED": lambda: True}, []),
        ({}, []),
    ],
)
def test_w014_names_each_switch(settings: Any, setting: Any, messages: list[str]) -> None:
    """Of the project, and of a view. A callable is asked later, so nobody forgets it."""
    settings.IDEMPOTENCY = setting
    view = [] if "OBSERVE" in setting else [f"{__name__}.charge has observe=True: each retry runs again."]
    found = [problem for problem in check_project(None) if problem.id == "django_idempotency.W014"]
    assert [problem.msg for problem in found] == [*messages, *view]


def key_of(name: str, key: str) -> str:
    return derived_key(scope="anonymous", operation=f"POST {name}", key=key, step="charge")


@pytest.mark.parametrize("name", VIEWS)
def test_with_enabled_off_a_retry_sends_the_same_derived_key(post: Post, settings: Any, name: str) -> None:
    """And the one that the protected request sent."""
    charged = [post(f"/{name}", key="a").content.decode()]
    settings.IDEMPOTENCY = OFF
    charged += [post(f"/{name}", key=key).content.decode() for key in ("a", "a", "b")]
    assert charged == [*[key_of(name, "a")] * 3, key_of(name, "b")]


def test_on_an_event_loop_too(settings: Any) -> None:
    """The caller is found in the thread of the connection, before the view runs on the loop."""
    settings.IDEMPOTENCY = OFF
    charged = [async_to_sync(AsyncClient().post)("/async", headers={"Idempotency-Key": "a"}) for _ in range(2)]
    assert [answer.content.decode() for answer in charged] == [key_of("async", "a")] * 2


@pytest.mark.parametrize("name", OBSERVED)
def test_in_observe_mode_a_retry_sends_the_same_derived_key(post: Post, settings: Any, name: str) -> None:
    """Whether the key was claimed, or would have been replayed, or refused because of a body that is too large."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1 if name == "observed/refused" else 10
    charged = {post(f"/{name}", key="a").content.decode() for _ in range(2)}
    assert charged == {key_of(name, "a")}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": '"a'}, {"Idempotency-Key": "a"}])
def test_what_cannot_be_identified_runs(
    client: Any, settings: Any, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    """Without a key, with one that is none, and as a caller who would be refused: each request has its own."""
    settings.IDEMPOTENCY = OFF
    assert len({client.post("/optional", headers=headers).content for _ in range(2)}) == 2
    assert [record.levelname for record in caplog.records if record.name == "django_idempotency"] == ["WARNING"]


def charge_once(operation: Any) -> str:
    return str(operation.derive_key("charge"))


@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.parametrize("options", [{"operation": "pay"}, {}])
def test_run_once_sends_the_same_derived_key(settings: Any, lease: Any, options: Any) -> None:
    """Nothing is stored."""
    settings.IDEMPOTENCY = OFF
    charged = {run_once(charge_once, scope="s", key="a", lease=lease, **options).value for _ in range(2)}
    operation = options.get("operation", f"{__name__}.charge_once")
    assert charged == {derived_key(scope="s", operation=operation, key="a", step="charge")}
    assert not IdempotencyKey.objects.exists()
