"""Where the decorator refuses to stand: above whatever decides who the caller is."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.decorators import login_required, permission_required
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import IdempotencyConfigurationError, idempotent
from tests.integration import edge_urls
from tests.integration.placement_urls import Above, Private, view
from tests.shopapp.models import Order


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (login_required(view), "    @login_required\n    @idempotent\n"),
        (permission_required("x")(view), "above the login check"),
        (Private.as_view(), "class OrderView(LoginRequiredMixin, View):\n        @method_decorator(idempotent)"),
        (View, 'Use @method_decorator(idempotent, name="post")'),
        (staticmethod(view), "is not one"),
        ("view", "is not one"),
    ],
)
def test_it_refuses_at_decoration(target: Any, message: str) -> None:
    """With the right order printed."""
    with pytest.raises(IdempotencyConfigurationError) as caught:
        idempotent(target)
    assert message in str(caught.value)


def test_it_refuses_a_handler_of_a_safe_method() -> None:
    """There is nothing to protect."""
    with pytest.raises(IdempotencyConfigurationError, match="safe method"):

        class Wrong(View):
            @idempotent
            def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()


def test_a_function_may_be_called_get() -> None:
    """Only methods are named after verbs."""

    def get(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert idempotent(get).__name__ == "get"


def test_it_refuses_dispatch_above_an_access_mixin_before_the_view_runs(rf: Any) -> None:
    """What decoration cannot know, the first request shows."""
    with pytest.raises(IdempotencyConfigurationError, match="dispatch of Above above its access mixin"):
        Above.as_view()(rf.post("/"))


def test_a_decorated_dispatch_method_is_looked_at_too(rf: Any) -> None:
    """With its instance as first argument; nothing is wrong here."""

    class Right(View):
        @idempotent(required=False)
        def dispatch(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("ran")

    assert Right.as_view()(rf.post("/")).content == b"ran"


def test_it_refuses_a_login_check_below_it_in_method_decorator(rf: Any) -> None:
    """The list is applied from the bottom: idempotent would stand above."""

    @method_decorator([idempotent, login_required], name="dispatch")
    class Wrong(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("the view ran")

    with pytest.raises(IdempotencyConfigurationError, match="above the login check"):
        Wrong.as_view()(rf.post("/"))


def test_it_refuses_ninjas_bound_operations() -> None:
    """Known by their module, without importing it."""

    class Operation:
        def run(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    Operation.__module__ = "ninja.operation"
    with pytest.raises(IdempotencyConfigurationError, match="Ninja"):
        idempotent(Operation().run)


@pytest.mark.django_db
def test_a_dispatch_decorated_in_its_own_class_is_refused_under_an_access_mixin(rf: Any) -> None:
    """Also without method_decorator; the view does not run."""
    with pytest.raises(IdempotencyConfigurationError, match="dispatch of Private above its access mixin"):
        edge_urls.Private().dispatch(rf.post("/", headers={"Idempotency-Key": "k"}))
    assert Order.objects.count() == 0
