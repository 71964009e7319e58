from __future__ import annotations

from typing import Any

from django.urls import path
from oscar.apps.checkout.apps import CheckoutConfig as OscarsConfig


class CheckoutConfig(OscarsConfig):
    """Two places to confirm an order: one is paid by invoice, and one by card, through a gateway."""

    name = "tests.extra.projects.oscar_shop.checkout"

    def get_urls(self) -> Any:
        from tests.extra.projects.oscar_shop.checkout.views import by_card, by_invoice

        own = [path("preview/", by_invoice, name="preview"), path("card/", by_card, name="card")]
        return self.post_process_urls(own) + super().get_urls()
