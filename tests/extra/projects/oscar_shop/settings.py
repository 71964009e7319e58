"""A shop with django-oscar as its pages describe one: the checkout is an app of the shop's own."""

from __future__ import annotations

import os
from pathlib import Path

from oscar.defaults import *  # noqa: F403

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS, MIDDLEWARE, TEMPLATES

_APPS = "analytics address shipping catalogue communication partner basket payment offer order customer search voucher"
_DASHBOARDS = "reports users orders catalogue offers partners pages ranges reviews vouchers communications shipping"
INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.flatpages",
    "oscar.config.Shop",
    "tests.extra.projects.oscar_shop.checkout.apps.CheckoutConfig",
    *(f"oscar.apps.{app}.apps.{app.title()}Config" for app in f"{_APPS} wishlists dashboard".split()),
    *(f"oscar.apps.dashboard.{app}.apps.{app.title()}DashboardConfig" for app in _DASHBOARDS.split()),
    "oscar.apps.catalogue.reviews.apps.CatalogueReviewsConfig",
    "widget_tweaks",
    "haystack",
    "treebeard",
    "django_tables2",
]
MIDDLEWARE = [*MIDDLEWARE, "oscar.apps.basket.middleware.BasketMiddleware"]
TEMPLATES = [
    {
        **TEMPLATES[0],
        "DIRS": [Path(__file__).parent / "templates"],
        "OPTIONS": {
            "context_processors": [
                *TEMPLATES[0]["OPTIONS"]["context_processors"],
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ]
        },
    }
]
ROOT_URLCONF = "tests.extra.projects.oscar_shop.urls"
AUTHENTICATION_BACKENDS = ["oscar.apps.customer.auth_backends.EmailBackend"]
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
GATEWAY = os.environ["GATEWAY"]
