"""URLconfs of a test's own."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.urls import clear_url_caches
from django.urls import path as django_path
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from tests.operators.endpoints.shop import tenant, view


@pytest.fixture
def urlconf(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A URLconf of these routes."""

    def make(**views: Any) -> str:
        module: Any = ModuleType("listed_urls")
        module.urlpatterns = [django_path(name, view) for name, view in views.items()]
        monkeypatch.setitem(sys.modules, "listed_urls", module)
        clear_url_caches()  # resolvers are cached by the name of the URLconf
        return "listed_urls"

    return make


@pytest.fixture
def shop(urlconf: Any) -> str:
    """Two endpoints that are protected and one that is not."""
    pay = idempotent(ttl=90, scope=tenant, operation="pay", fingerprint=("amount",), required=False)
    return urlconf(
        orders=require_POST(idempotent(view)), pay=require_POST(pay(view)), plain=require_POST(view), any=view
    )
