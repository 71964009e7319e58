"""The contract of the project's defaults: each one, alone and in pairs, on each way to protect an operation.

An option of the setting that an endpoint cannot use is not applied to it. No default makes an endpoint fail.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import override_settings
from django.urls import include, path

from django_idempotency.checks import check_project
from django_idempotency.engine.conf import Idempotency, resolve
from django_idempotency.engine.conf.options import OPTION_NAMES
from tests.contracts.adapters import Adapter, adapters, create, marks

pytestmark = pytest.mark.django_db
adapter = adapters(lambda adapter: type(adapter).__name__ in ("Function", "Class", "RestFramework", "Ninja", "Once"))
"""One of each module that resolves options. The others differ in how they call the view."""


def read(request: Any) -> Any:
    return request.headers["Idempotency-Key"]


def tenant(request: Any) -> str:
    return "tenant"


def body(request: Any) -> bytes:
    return b"body"


def below_300(response: Any) -> bool:
    return bool(response.status_code < 300)


def always(*asked: Any) -> bool:
    return True


def ask(operation: Any) -> None:
    raise AssertionError("no key of this test was abandoned")


PROJECT: dict[str, Any] = {
    "TTL": 8 * 24 * 3600,
    "REQUIRED": False,
    "METHODS": ("PUT",),
    "WAIT": 1,
    "IN_PROGRESS_STATUS": 202,
    "MISMATCH_STATUS": 409,
    "LEASE": 60,
    "ON_ABANDONED": "hold",
    "RECONCILE": ask,
    "SCOPE": tenant,
    "ANONYMOUS": "refuse",
    "KEY": read,
    "LATE_KEYS": "refuse",
    "FINGERPRINT": body,
    "RECORD": below_300,
    "MAY_REPLAY": always,
    "STORE_BODY": False,
    "MAX_BODY_BYTES": 5,
    "USING": "default",
    "OBSERVE": True,
}
"""A value of each option that is not its default."""
FITS_NO_PROJECT = {"OPERATION": "orders", "BACKEND": "events"}
"""Refused for a whole project: below, and in tests/unit/test_backends.py."""


def a_key() -> str:
    """A UUID of version 7 that is a moment old, as LATE_KEYS asks for."""
    from time import time_ns

    return str(UUID(int=(time_ns() // 10**6 << 80) | (7 << 76) | (2 << 62) | (uuid4().int & ((1 << 62) - 1))))


def expected(adapter: Adapter, given: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Of a request and its retry."""
    if adapter.http and ("OBSERVE" in given or ("METHODS" in given and adapter.by_method)):
        return [(201, None)] * 2
    if adapter.http and not {"STORE_BODY", "MAX_BODY_BYTES"}.isdisjoint(given):
        return [(201, "false"), (409, "false")]
    return [(201, "false"), (201, "true")]


def test_the_table_has_each_option() -> None:
    """With a value that differs from the default."""
    assert {name.upper() for name in OPTION_NAMES} == {*PROJECT, *FITS_NO_PROJECT}


DEPENDING = ("TTL", "IN_PROGRESS_STATUS", "LEASE", "ON_ABANDONED", "RECONCILE", "OBSERVE")
"""Options of which one decides what becomes of another. Of all others, each pair is tried without requests."""
DECLARED: tuple[dict[str, Any], ...] = ({}, {"lease": 90}, {"lease": 90, "operation": "pay"})
"""What the endpoint says itself: nothing, so it is in the project's mode; a lease; a lease and its name."""


@pytest.mark.parametrize("declared", DECLARED, ids=str)
def test_a_default_of_the_project_breaks_no_endpoint(adapter: Adapter, declared: dict[str, Any]) -> None:
    """Alone, and in pairs where one default decides about the other. The system checks agree."""
    send, known = adapter.protect(create, **declared), {}
    if adapter.http:
        known = {"headers": {"Authorization": "Bearer t"}}
        status = path("idempotency/", include("django_idempotency.urls"))
        adapter.urls.urlpatterns.append(status)  # type: ignore[attr-defined]
    for names in (*((name,) for name in PROJECT), *combinations(DEPENDING, 2)):
        given, key = {name: PROJECT[name] for name in names}, a_key()
        with override_settings(IDEMPOTENCY=given):
            assert marks([send(key, **known) for _ in range(2)]) == expected(adapter, given), given
            if len(names) == 1:
                told = {problem.id.removeprefix("django_idempotency.") for problem in check_project(None)}
                unnamed = adapter.http and "operation" not in declared and ("lease" in declared or "LEASE" in given)
                advised = {"W014": "OBSERVE" in given, "W015": unnamed}
                assert told - {"W001"} == {name for name, applies in advised.items() if applies}, given


@pytest.mark.parametrize("declared", DECLARED, ids=str)
def test_each_pair_of_defaults_can_be_resolved(declared: dict[str, Any]) -> None:
    """Those of leased mode wait for a lease, and `reconcile` for the name of an operation."""
    for names in combinations(PROJECT, 2):
        given = {name: PROJECT[name] for name in names}
        with override_settings(IDEMPOTENCY=given):
            options = resolve(Idempotency(**declared))
        leased = bool(declared) or "LEASE" in given
        assert (options.lease is not None, options.policy) == (
            leased,
            (given.get("ON_ABANDONED", "retry-keyed") if leased else None),
        )
        assert options.reconcile is (given.get("RECONCILE") if "operation" in declared else None)
        assert options.in_progress_status == (given.get("IN_PROGRESS_STATUS", 409) if leased else 409)


def test_one_operation_for_the_whole_project_is_refused() -> None:
    """A key of one operation would be answered with the response of another."""
    with override_settings(IDEMPOTENCY={"OPERATION": FITS_NO_PROJECT["OPERATION"]}):
        (problem,) = check_project(None)
    assert (problem.id, problem.msg) == (
        "django_idempotency.E001",
        "IDEMPOTENCY['OPERATION']='orders': with one name for all operations, a key of one would be answered with the "
        "response of another. Pass operation= to the decorator, the class or the call.",
    )
