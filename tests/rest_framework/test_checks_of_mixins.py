"""E012: options under a name that nothing reads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.core.checks import Error
from django.test import override_settings
from django.urls import path
from rest_framework.viewsets import ViewSet

from django_idempotency.checks import check_urls
from django_idempotency.rest_framework import IdempotencyMixin


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"idempotency_actions": {"create": None, "craete": None}},
            ".idempotency_actions names 'craete', but the class has no such method. "
            "Correct the name, or remove the entry.",
        ),
        (
            {"idempotency_options": {"ttl": 60}},
            " has the attribute idempotency_options, which has no effect. Call the attribute idempotency.",
        ),
    ],
)
def test_e012_a_name_that_nothing_reads(attributes: Any, message: str) -> None:
    """An error, with the name to correct."""
    wrong: Any = type("Wrong", (IdempotencyMixin, ViewSet), {"create": lambda self, request: None, **attributes})
    urls: Any = ModuleType("urls_of_this_test")
    urls.urlpatterns = [path("orders", wrong.as_view({"post": "create"}))]
    with override_settings(ROOT_URLCONF=urls):
        assert check_urls(None) == [Error(f"{__name__}.Wrong{message}", id="django_idempotency.E012")]
