"""The page about options: what is one operation, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import clear_url_caches, path
from django.utils.translation import override

from django_idempotency.endpoints import list_endpoints
from tests.shopapp.models import Order

KEYED = {"headers": {"Idempotency-Key": "one"}, "content_type": "application/json"}


@pytest.mark.django_db
def test_one_key_under_two_languages_is_one_order(run: Any, serve: Any, client: Client, settings: Any) -> None:
    """The operation has a name. The list of endpoints does not depend on the active language."""
    settings.LANGUAGE_CODE = "en"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    clear_url_caches()
    serve(*run("docs/options.md", "shop/languages.py").urlpatterns)
    answers = [client.post(f"/{language}/orders/", **KEYED) for language in ("en", "de")]
    assert [answer["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
    assert Order.objects.count() == 1
    with override("de"):
        assert {endpoint.route for endpoint in list_endpoints()} == {"en/orders/"}
    clear_url_caches()


@pytest.mark.django_db
def test_a_nested_time_stamp_may_differ(run: Any, serve: Any, client: Client) -> None:
    """And nothing else in the body."""
    serve(path("orders/", run("docs/options.md", "shop/unstamped.py").create_order))
    bodies = [{"amount": amount, "meta": {"sent_at": number}} for number, amount in enumerate((1, 1, 2))]
    answers = [client.post("/orders/", body, **KEYED) for body in bodies]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert client.post("/orders/?stamp=3", bodies[0], **KEYED).status_code == 422
