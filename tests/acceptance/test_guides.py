"""docs/choices.md, recipes.md and how-it-works.md: their code runs, and their tables and pictures are complete."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.http import HttpResponse
from django.test import Client, modify_settings, override_settings
from django.urls import clear_url_caches, path

from django_idempotency import OutcomeUnknown
from django_idempotency.checks import check_cors
from django_idempotency.keys import key_reference
from django_idempotency.maintenance import find_key
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key, scope_of_user
from tests.shopapp import models


@pytest.mark.django_db
def test_an_order_number_is_the_key(run: Any, serve: Any, client: Client) -> None:
    """A retry gets the first answer. When the key has gone, the unique column still refuses a second order."""
    serve(path("orders/", run("docs/choices.md", "shop/by_number.py").create_order))

    def send() -> Any:
        return client.post("/orders/", {"order_id": "A-7"}, content_type="application/json")

    first, again = send(), send()
    assert (first.status_code, again.content, again["Idempotency-Replayed"]) == (201, first.content, "true")
    IdempotencyKey.objects.all().delete()
    assert send().status_code == 409
    assert models.Ledger.objects.count() == 1


@pytest.mark.django_db
def test_sold_out_is_final(run: Any, serve: Any, client: Client, monkeypatch: Any) -> None:
    """One seat, two customers: one ticket. The refusal is replayed, also when a seat is free again."""
    monkeypatch.setattr(models, "Show", models.Order, raising=False)
    show = models.Order.objects.create(reference="Hamlet", amount=1)
    serve(path("tickets/", run("docs/choices.md", "shop/booking.py").book))

    def book(key: str) -> Any:
        return client.post("/tickets/", {"show": "Hamlet"}, headers={"Idempotency-Key": key})

    assert [book("one").status_code, book("one").status_code, book("two").status_code] == [201, 201, 409]
    models.Order.objects.filter(pk=show.pk).update(amount=1)
    refused = book("two")
    assert (refused.status_code, refused["Idempotency-Replayed"], "Retry-After" in refused) == (409, "true", False)
    assert models.Order.objects.filter(reference="a ticket for Hamlet").count() == 1


# Django 6.1 warns of a project without MAILERS, a setting that 5.2 does not know.
@pytest.mark.filterwarnings("ignore:.*(default mailer|MAILERS)")
@pytest.mark.django_db(transaction=True)
def test_a_mail_is_sent_once(run: Any, monkeypatch: Any) -> None:
    """A second call sends nothing. A mail whose server has failed is held for a person."""
    recipe = run("docs/recipes.md", "shop/mail.py")
    assert [recipe.confirm(7, "ann@shop.example") for _ in range(2)] == [False, True]
    assert [message.subject for message in mail.outbox] == ["Your order"]

    smtp = {"EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend", "EMAIL_PORT": 1}
    with override_settings(**smtp), pytest.raises(ConnectionRefusedError):
        recipe.confirm(8, "ann@shop.example")
    with pytest.raises(OutcomeUnknown):
        recipe.confirm(8, "ann@shop.example")
    assert len(mail.outbox) == 1


@pytest.mark.django_db
def test_a_celery_task_ships_once(run: Any) -> None:
    """Sent twice, as a broker may deliver it: one row, and one result."""
    pytest.importorskip("celery")
    ship = run("docs/events.md", "shop/celery_tasks.py").ship
    first, again = (ship.apply([7]).get() for _ in range(2))
    assert first == again == models.Order.objects.get().pk


@pytest.mark.django_db
def test_a_user_is_told_what_is_stored(run: Any, django_user_model: Any) -> None:
    """The user's own keys only."""
    ann, ben = (django_user_model.objects.create_user(name) for name in ("ann", "ben"))
    create_key("one", scope=scope_of_user(ann))
    create_key("two", scope=scope_of_user(ben))
    assert [row["key"] for row in run("docs/recipes.md", "shop/disclosure.py").stored_about(ann)] == ["one"]


@pytest.mark.django_db
def test_a_refusal_shows_the_reference(run: Any, serve: Any, client: Client) -> None:
    """Support finds the key by the reference."""
    serve(path("orders/", run("README.md", "shop/views.py").create_order))
    answer = run("docs/recipes.md", "shop/problems.py").with_reference
    with override_settings(IDEMPOTENCY={"ERROR_RESPONSE": answer}):
        for amount in (1, 2):
            data = {"reference": "a book", "amount": amount}
            response = client.post("/orders/", data, headers={"Idempotency-Key": '"one"'})
    assert (response.status_code, response.json()["code"]) == (422, "already-used")
    assert response.json()["reference"] == key_reference("one")
    assert find_key(response.json()["reference"]).get().key == "one"


@pytest.mark.django_db
def test_the_browsable_api_needs_no_key(run: Any, serve: Any, client: Client) -> None:
    """A browser may post without a key. A program may not."""
    pytest.importorskip("rest_framework")
    clear_url_caches()
    serve(path("orders/", run("docs/recipes.md", "shop/browsable.py").OrderView.as_view()))

    def send(accepted: str) -> Any:
        return client.post("/orders/", {"reference": "a book"}, headers={"Accept": accepted}).status_code

    assert (send("text/html"), send("application/json")) == (201, 400)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("record", "kept"), [("keep_success_only", []), ("keep_refused_access_too", [401, 402, 403, 404, 409, 422])]
)
def test_failures_are_kept_as_the_page_says(run: Any, record: str, kept: list[int]) -> None:
    """With each `record` of the page."""
    is_final = getattr(run("docs/choices.md", "shop/failures.py"), record)
    statuses = [401, 402, 403, 404, 408, 409, 422, 423, 425, 429, 500]
    assert [status for status in statuses if status < 500 and is_final(HttpResponse(status=status))] == kept


@pytest.mark.django_db
def test_a_page_of_another_origin_may_send_the_key_and_read_the_answer(run: Any, serve: Any, client: Client) -> None:
    """The package's own refusal has the headers of CORS."""
    pytest.importorskip("corsheaders")
    shown = vars(run("docs/recipes.md", "spa_settings.py"))
    settings = {name: value for name, value in shown.items() if name.isupper() and name != "SHOP"}
    serve(path("orders/", run("README.md", "shop/views.py").create_order))
    middleware = {"prepend": "corsheaders.middleware.CorsMiddleware"}
    with (
        modify_settings(INSTALLED_APPS={"append": "corsheaders"}, MIDDLEWARE=middleware),
        override_settings(**settings),
    ):
        assert check_cors(None) == []
        refused = client.post("/orders/", {"reference": "a book"}, headers={"Origin": "https://shop.example"})
    assert (refused.status_code, refused["Access-Control-Allow-Origin"]) == (400, "https://shop.example")
    assert refused["Access-Control-Expose-Headers"] == "Idempotency-Replayed, Retry-After"
