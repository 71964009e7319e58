"""The mixin for Django REST framework views, which lets them pass on a final response unchanged."""

from __future__ import annotations

from typing import Any

from ..views import IdempotencyMixin as ViewMixin
from .finality import guard


class IdempotencyMixin(ViewMixin):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls)
