"""The sentence of the index page and of the list: what has happened, since when, to whom, and where to begin."""

from __future__ import annotations

import html
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import override

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import HOUR, LIST, detail, make_key, staff
from tests.step_rows import add_step

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
PAY = {"operation": "POST ^orders/(?P<pk>[0-9]+)/pay/$"}


def failed(key: str, hours: int, **fields: Any) -> IdempotencyKey:
    ago = timezone.now() - hours * HOUR
    return make_key(key, **{"status": "failed", "status_code": None, "created_at": ago, "completed_at": None, **fields})


def sentences(client: Client) -> tuple[str, str]:
    """The note of the index page, and the section above the list, as texts."""
    pages = [client.get(reverse(name)).content.decode() for name in ("admin:index", LIST)]
    return tuple(html.unescape(page) for page in pages)  # type: ignore[return-value]


def test_a_call_in_doubt_is_told_with_its_operation_age_amount_and_key() -> None:
    """A person at night knows from one sentence what it is about."""
    key = failed("k-1", 3, operation="pay a basket")
    result = '{"value": {"amount": 1999, "currency": "eur"}}'
    add_step(key, "basket", "write", finished_at=timezone.now(), result=result)
    add_step(key)
    told = (
        "The outcome of 1 request has been unknown for 3\xa0hours (1 × pay a basket): a customer may have paid"
        "{} and have no order. Begin with its key."
    )
    for page in sentences(staff("view_idempotencykey", "view_response")):
        assert told.format(" (1999 eur)") in page
        assert f'<a href="{detail(key)}">The key to begin with</a>' in page
    for page in sentences(staff("view_idempotencykey")):  # results need their own permission
        assert told.format("") in page


def test_several_are_told_for_each_operation_and_the_worst_state_speaks() -> None:
    """Money that may have moved twice matters more than a request that never got anywhere."""
    oldest = failed("k-1", 5, **PAY)
    add_step(oldest)
    for number, operation in enumerate(("refund", "refund", "o", "p")):
        add_step(failed(f"l-{number}", 4 - number, operation=operation))
    add_step(failed("half", 9, operation="ship"), finished_at=timezone.now(), result='{"value": 1}')
    for page in sentences(staff("view_idempotencykey")):
        assert (
            "The outcome of 5 requests is unknown (1 × POST orders/<pk>/pay/, 2 × refund, 1 × o, …), the oldest for "
            "5\xa0hours: a customer may have paid and have no order. Begin with the oldest key."
        ) in page
        assert f'<a href="{detail(oldest)}">The key to begin with</a>' in page
    assert "Needs attention: 6</a>" in sentences(staff("view_idempotencykey"))[0]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("half", "1 request stopped halfway (1 × o), 2\xa0hours ago: a customer may have paid and have no order."),
        ("stuck", "1 request has lost its worker (1 × o), 2\xa0hours ago. It has called nothing outside, so nobody "),
    ],
)
def test_the_other_states_say_what_they_mean_for_a_customer(state: str, told: str) -> None:
    """A lost worker that had called nothing is no alarm about money."""
    if state == "half":
        add_step(failed("k", 2, operation="o"), finished_at=timezone.now(), result='{"value": 1}')
    else:
        lapsed = timezone.now() - timedelta(minutes=1)
        add_step(failed("k", 2, operation="o", status="in_progress", locked_until=lapsed), kind="fetch")
    for page in sentences(staff("view_idempotencykey")):
        assert told in page


@pytest.mark.parametrize(
    ("result", "amount"),
    [
        ('{"value": {"total": "19.99", "currency": "EUR"}}', "19.99 EUR"),
        ('{"value": {"amount": 5}}', "5"),
        ('{"value": {"amount": 5, "currency": 7}}', "5"),
        ('{"value": {"amount": true}}', ""),
        ('{"value": {"amount": {"value": 5}}}', ""),
        ('{"value": {"amount": "' + "9" * 40 + '"}}', ""),
        ('{"value": [1]}', ""),
        ('{"model": "shopapp.order", "pk": "1"}', ""),
        ("[1]", ""),
        ("{broken", ""),
    ],
)
def test_the_amount_is_what_a_step_has_stored(admin_client: Client, result: str, amount: str) -> None:
    """As it is stored, because nobody knows whether it is in cents. Without one, nothing is said."""
    key = failed("k", 1)
    add_step(key, "cart", "write", finished_at=timezone.now(), result=result)
    add_step(key)
    page = admin_client.get(detail(key)).content.decode()
    assert (f"Amount: <strong>{amount}</strong>" in page) is bool(amount)
    assert ("Amount:" in page) is bool(amount)


def test_a_lost_operation_and_a_missing_style_sheet(admin_client: Client) -> None:
    """Keys whose route was renamed are told on the index page, which also works where no static file was collected."""
    make_key(operation="POST gone/")
    manifest = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}
    with override_settings(STORAGES=manifest, STATIC_ROOT="/nowhere"):
        from django_idempotency.templatetags.idempotency_admin import _styles

        assert _styles() == ""
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert "Some keys belong to operations that no endpoint has any more" in page
    assert "POST gone/" in page
    assert "Nothing needs attention" not in page


def test_ids_stay_numbers_under_any_locale(admin_client: Client, settings: Any) -> None:
    """Thousands separators would break the link."""
    settings.USE_THOUSAND_SEPARATOR = True
    key = failed("k", 1, id=1234567)
    add_step(key)
    with override("de"):
        assert detail(key) in sentences(admin_client)[0]
