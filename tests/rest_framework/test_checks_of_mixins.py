"""E012: options under a name that nothing reads."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.core.checks import Error
from django.test import override_settings
from django.urls import clear_url_caches, path
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_idempotency.checks import check_urls
from django_idempotency.rest_framework import IdempotencyMixin


class WrongAction(IdempotencyMixin, ViewSet):
    idempotency_actions = {"create": None, "craete": None}

    def create(self, request: Any) -> Response: ...


class WrongAttribute(IdempotencyMixin, ViewSet):
    idempotency_options = {"ttl": 60}

    def create(self, request: Any) -> Response: ...


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (
            WrongAction,
            f"{__name__}.WrongAction.idempotency_actions names 'craete', but the class has no such method. "
            "Correct the name, or remove the entry.",
        ),
        (
            WrongAttribute,
            f"{__name__}.WrongAttribute has the attribute idempotency_options, which has no effect. "
            "Call the attribute idempotency.",
        ),
    ],
)
def test_e012_a_name_that_nothing_reads(monkeypatch: pytest.MonkeyPatch, view: Any, message: str) -> None:
    """An error, with the name to correct."""
    urls = ModuleType("urls")
    urls.urlpatterns = [path("orders", view.as_view({"post": "create"}))]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "urls_of_this_test", urls)
    with override_settings(ROOT_URLCONF="urls_of_this_test"):
        clear_url_caches()
        assert [*check_urls()] == [Error(message, id="django_idempotency.E012")]
