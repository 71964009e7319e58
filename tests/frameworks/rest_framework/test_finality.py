"""What the REST framework does with a response that is final: nothing more."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from django.urls import path

pytest.importorskip("rest_framework")

from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import idempotent, views
from django_idempotency.rest_framework import IdempotencyMixin
from tests.http import replayed
from tests.views import view_class

Post = Callable[..., Any]
pytestmark = pytest.mark.django_db
SEEN: list[str] = []
VIEWS: list[APIView] = []


class Noting:
    """The project's own methods, somewhere in a view's MRO."""

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("finalized")
        response.headers["X-Finalized"] = str(len(SEEN))
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]

    def handle_exception(self, exc: Exception) -> Any:
        SEEN.append("asked")
        return super().handle_exception(exc)  # type: ignore[misc]


def fails_or_notes(request: Any) -> Response:
    if "fails" in request.query_params:
        raise ZeroDivisionError
    VIEWS.append(request.parser_context["view"])
    return Response({"id": 1}, status=201)


Orders = view_class(APIView, post=fails_or_notes)


class Decorated(Noting, Orders):
    post = idempotent(Orders.post)


class OfPlainDjango(Noting, views.IdempotencyMixin, Orders):
    pass


class Before(Noting, IdempotencyMixin, Orders):
    pass


class After(IdempotencyMixin, Noting, Orders):
    pass


class Inherited(Before):
    """It overrides what its base class has overridden."""

    def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
        return super().finalize_response(*args, **kwargs)


KINDS: list[Any] = [Decorated, OfPlainDjango, Before, After, Inherited]


def signed(function: Any) -> Any:
    """A decorator between the view and its protection that answers with a response of its own."""

    def wrapper(request: Any) -> Response:
        return Response({"signed": function(request).data}, status=202)

    return wrapper


@api_view(["POST"])
@signed
@idempotent
def wrapped(request: Any) -> Response:
    return Response({"id": 1}, status=201)


urlpatterns = [*(path(kind.__name__, kind.as_view()) for kind in KINDS), path("wrapped", wrapped)]
pytestmark = [pytestmark, pytest.mark.urls("tests.frameworks.rest_framework.test_finality")]
kinds = pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()
    VIEWS.clear()


@kinds
def test_the_projects_own_methods_see_it_once(post: Post, kind: str) -> None:
    """A replay is what was stored. The view object has no methods of its own."""
    first, replay = (post(f"/{kind}", {"item": "tea"}) for _ in range(2))
    assert SEEN == ["finalized"]
    assert [vars(view).keys() & {"finalize_response", "handle_exception"} for view in VIEWS] == [set()]
    assert (first.status_code, replayed(replay)) == (201, "true")
    assert (first.content, first.headers["X-Finalized"]) == (replay.content, replay.headers["X-Finalized"])


@kinds
def test_an_error_that_nobody_answers_is_asked_about_once(post: Post, kind: str) -> None:
    """It reaches Django as it is, and the next request meets the same methods again."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            post(f"/{kind}?fails", {"item": "tea"})
    assert SEEN == ["asked", "asked"]


def test_another_response_is_finalized(post: Post) -> None:
    """What a decorator makes of a final response is not what was stored: it must be rendered."""
    sent = [post("/wrapped", {"item": "tea"}) for _ in range(2)]
    assert [(response.status_code, response.json()) for response in sent] == [(202, {"signed": {"id": 1}})] * 2


def test_a_class_that_a_test_has_patched_is_guarded_again(post: Post) -> None:
    """A class that is not ours keeps what a project or a test puts into it."""

    def finalize_response(view: Any, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("patched")
        return APIView.finalize_response(view, *args, **kwargs)

    post("/Decorated", {"item": "tea"})
    with patch.object(Decorated, "finalize_response", finalize_response):
        assert [replayed(post("/Decorated", {"item": "tea"}, key=key)) for key in ("k", "k")] == ["false", "true"]
    post("/Decorated", {"item": "tea"}, key="l")
    assert SEEN == ["finalized", "patched", "finalized"]
    assert isinstance(vars(Decorated)["finalize_response"], types.FunctionType)
