"""Operations of Django Ninja for its tests."""

from __future__ import annotations

from typing import Any

import ninja
from django.http import HttpRequest

from tests.shopapp.models import Order

Status: Any = getattr(ninja, "Status", lambda *pair: pair)  # new in 1.6, where pairs became deprecated


def maker() -> Any:
    """An operation that makes an order: a function of its own for each route, because routing leaves a mark on it."""

    def make(request: HttpRequest) -> Any:
        return {"id": Order.objects.create().pk}

    return make
