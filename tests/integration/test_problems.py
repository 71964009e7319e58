"""Error answers as RFC 9457 problem details. The exact text of each is in test_conformance.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpResponse
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.http import problem

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


def test_c24_without_docs_there_is_no_link(post: Post) -> None:
    """And the type is about:blank."""
    response = post("/create", key=None)
    assert "Link" not in response.headers
    assert problem(response)["type"] == "about:blank"


def test_with_docs_the_type_points_to_the_anchor_of_the_code(post: Post, settings: Any) -> None:
    """A fragment in the setting makes room."""
    settings.IDEMPOTENCY = {"DOCS_URL": "https://shop.example/docs#top"}
    body = problem(post("/create", key=None))
    assert (body["type"], body["code"]) == ("https://shop.example/docs#missing-key", "missing-key")


@pytest.mark.parametrize("name", ["X-Idempotency-Key", "Idempotent-Key"])
def test_a_header_with_a_similar_name_is_named(post: Post, name: str) -> None:
    """The client sees at once which name is expected."""
    detail = problem(post("/create", key=None, headers={name: "k"}))["detail"]
    assert detail == (
        "This operation needs the request header Idempotency-Key with a unique value, such as a UUID. "
        f"The header {name} was sent, which has another name."
    )


def test_r1_titles_are_never_translated(post: Post) -> None:
    """Details may be."""
    response = post("/create", key=None, headers={"Accept-Language": "de"})
    assert problem(response)["title"] == "Idempotency-Key is missing"


def test_r1_the_instance_is_a_uri_reference(post: Post) -> None:
    """Escaped."""
    assert problem(post("/create", key=None))["instance"] == "/create"


def _plain_error(request: Any, problem: Any) -> HttpResponse:
    return HttpResponse(f"{problem.status} {problem.title}", status=problem.status, headers={"X-Own": "1"})


def test_r1_the_project_can_have_its_own_format(post: Post, settings: Any) -> None:
    """ERROR_RESPONSE; Retry-After stays."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": _plain_error}
    post("/create")
    IdempotencyKey.objects.update(status="in_progress", locked_until=timezone.now() + timedelta(hours=1))
    response = post("/create")
    assert response.content == b"409 A request is outstanding for this Idempotency-Key"
    assert (response.headers["X-Own"], response.headers["Retry-After"]) == ("1", "60")


def test_the_header_names_can_change(post: Post, settings: Any) -> None:
    """HEADER and REPLAYED_HEADER."""
    settings.IDEMPOTENCY = {"HEADER": "X-Request-Key", "REPLAYED_HEADER": "Idempotent-Replayed"}
    answers = [post("/create", key=None, headers={"X-Request-Key": "k"}) for _ in range(2)]
    assert [a.headers["Idempotent-Replayed"] for a in answers] == ["false", "true"]
