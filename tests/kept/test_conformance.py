"""Rules from outside, each a test named after its number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from django_idempotency.exceptions import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.http import problem
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.view_urls")]
DOCS = "https://shop.example/docs/idempotency"


@pytest.mark.parametrize(
    ("validator", "reason"),
    [
        ("django_idempotency.keys.is_uuid", "It does not have the format that this server requires."),
        ("django.core.validators.validate_ipv4_address", "Enter a valid IPv4 address."),
    ],
)
def test_c6_a_validator_can_demand_uuids(post: Post, settings: Any, validator: str, reason: str, key: str) -> None:
    """One that returns False, and one of Django's that raises. The client is told why."""
    settings.IDEMPOTENCY = {"KEY_VALIDATOR": validator}
    good = key if validator.endswith("uuid") else "127.0.0.1"
    answers = [post("/create", key=k) for k in ("order-1", good)]
    assert [answer.status_code for answer in answers] == [400, 201]
    detail = f"The request header Idempotency-Key does not carry a usable key. {reason}"
    assert problem(answers[0])["detail"] == detail


def test_c22_a_mismatch_can_be_409(post: Post, settings: Any) -> None:
    """mismatch_status."""
    settings.IDEMPOTENCY = {"MISMATCH_STATUS": 409}
    assert [post("/create", {"a": amount}).status_code for amount in (1, 2)] == [201, 409]


@pytest.mark.parametrize(
    ("code", "status", "sent"),
    [("missing-key", 400, {"key": None}), ("in-progress", 409, {}), ("already-used", 422, {"data": {"a": 2}})],
)
def test_c22_c23_c24_c25_each_refusal_links_to_the_documentation(
    post: Post, settings: Any, code: str, status: int, sent: Any
) -> None:
    """The titles of each are in tests/unit/test_problems.py."""
    settings.IDEMPOTENCY = {"DOCS_URL": DOCS}
    post("/create", {"a": 1})
    if code == "in-progress":
        IdempotencyKey.objects.update(status="in_progress", locked_until=timezone.now() + timedelta(hours=1))
    response = post("/create", **{"data": {"a": 1}, **sent})
    assert (response.status_code, problem(response)["code"]) == (status, code)
    assert response.headers["Link"] == f'<{DOCS}>; rel="describedby"; type="text/html"'
    assert problem(response)["type"] == f"{DOCS}#{code}"
    assert response.headers.get("Retry-After") == ("60" if code == "in-progress" else None)
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_r19_without_a_store_nothing_runs(post: Post) -> None:
    """The key table is gone: the request fails closed, with an error that says what to do."""
    with connection.schema_editor() as editor:
        editor.alter_db_table(IdempotencyKey, IdempotencyKey._meta.db_table, "elsewhere")
    try:
        with pytest.raises(IdempotencyConfigurationError, match=r"Run: python manage\.py migrate\."):
            post("/create")
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(IdempotencyKey, "elsewhere", IdempotencyKey._meta.db_table)
    assert Order.objects.count() == 0


# --- error answers as RFC 9457 problem details


@pytest.mark.parametrize("name", ["X-Idempotency-Key", "Idempotent-Key"])
def test_a_header_with_a_similar_name_is_named(post: Post, name: str) -> None:
    """The client sees at once which name is expected."""
    detail = problem(post("/create", key=None, headers={name: "k"}))["detail"]
    assert detail.endswith(f"The request carries the header {name} instead.")


def _plain_error(request: Any, problem: Any) -> HttpResponse:
    headers = {"X-Own": request.path}
    return HttpResponse(f"{problem.status} {problem.title}", status=problem.status, headers=headers)


def test_r1_the_project_can_have_its_own_format(post: Post, settings: Any) -> None:
    """ERROR_RESPONSE; Retry-After stays."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": _plain_error}
    post("/create")
    IdempotencyKey.objects.update(status="in_progress", locked_until=timezone.now() + timedelta(hours=1))
    response = post("/create")
    assert response.content == b"409 A request is outstanding for this Idempotency-Key"
    assert (response.headers["X-Own"], response.headers["Retry-After"]) == ("/create", "60")


def test_the_header_names_can_change(post: Post, settings: Any) -> None:
    """HEADER and REPLAYED_HEADER."""
    settings.IDEMPOTENCY = {"HEADER": "X-Request-Key", "REPLAYED_HEADER": "Idempotent-Replayed"}
    answers = [post("/create", key=None, headers={"X-Request-Key": "k"}) for _ in range(2)]
    assert [a.headers["Idempotent-Replayed"] for a in answers] == ["false", "true"]
