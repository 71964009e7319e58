"""A route is renamed while clients retry: orders, and charges by the gateway's own book."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path, reverse
from django.utils import timezone
from django.views import View

from django_idempotency import get_operation, idempotent, run_once
from django_idempotency.checks import check_databases, check_urls
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance import close_with, recover_idempotency_keys
from django_idempotency.maintenance.renamed import sent_to_two_operations, unknown_operations
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from django_idempotency.views import IdempotencyMixin
from tests.at_rest import NEW
from tests.expired import without_tables
from tests.leases import Broken
from tests.servers import fake_gateway
from tests.shopapp.models import Order

CLIENTS = 6
"""The first half of them gets no response, because the gateway's is lost after the charge."""
LOST: set[str] = set()


class Gateway:
    def __init__(self, books: Any, before: int) -> None:
        self.books, self.before, self.keys = books, before, uuid4()

    def charge(self, client: str, key: str) -> Any:
        order = {"amount": 1, "reference": client}
        charged = self.books.post("/charges", json=order, headers={"Idempotency-Key": key}).json()["id"]
        if client in LOST:
            LOST.discard(client)
            raise Broken
        return charged

    def charged(self) -> int:
        return len(self.books.get("/charges").json()["charges"]) - self.before

    def send(self, route: str) -> list[int]:
        """The status that each client gets, under its key."""
        client = Client(raise_request_exception=False)
        keys = [{"Idempotency-Key": f"{self.keys}-{number}"} for number in range(CLIENTS)]
        return [client.post(f"/{route}/{n}/", headers=headers).status_code for n, headers in enumerate(keys)]


@pytest.fixture(scope="module")
def books() -> Iterator[Any]:
    with fake_gateway() as client:
        yield client


@pytest.fixture
def gateway(books: Any) -> Gateway:
    LOST.clear()
    LOST.update(f"c{number}" for number in range(CLIENTS // 2))
    return Gateway(books, before=len(books.get("/charges").json()["charges"]))


@contextmanager
def deployed(*urlpatterns: Any) -> Iterator[None]:
    urls = ModuleType("urls_of_this_deployment")
    urls.urlpatterns = list(urlpatterns)  # type: ignore[attr-defined]
    sys.modules[urls.__name__] = urls
    with override_settings(ROOT_URLCONF=urls.__name__):
        yield
    del sys.modules[urls.__name__]


def paying(gateway: Gateway) -> Callable[..., HttpResponse]:
    def charge_and_order(request: HttpRequest, basket: int) -> HttpResponse:
        operation = get_operation(request)
        client = f"c{basket}"
        operation.call("charge", gateway.charge, client, operation.derive_key("charge"))
        operation.write("order", Order.objects.create, reference=client)
        return HttpResponse(status=201)

    return charge_and_order


@pytest.mark.django_db(transaction=True)
@pytest.mark.server
@pytest.mark.parametrize(
    ("options", "kept", "retried"),
    [({"operation": "pay"}, [], "payments"), ({}, ["pay"], "pay")],
    ids=["with operation=", "the old route stays"],
)
def test_a_rename_that_keeps_its_keys_makes_no_second_order(
    gateway: Gateway, options: dict[str, Any], kept: list[str], retried: str
) -> None:
    """Answered requests are replayed, and the others go on, with the charge that was made."""
    view = idempotent(lease=60, **options)(paying(gateway))
    with deployed(path("pay/<int:basket>/", view)):
        assert gateway.send("pay") == [500, 500, 500, 201, 201, 201]
    with deployed(*(path(f"{route}/<int:basket>/", view) for route in ["payments", *kept])):
        assert gateway.send(retried) == [201] * 6
        assert unknown_operations() == []
    assert (Order.objects.count(), gateway.charged()) == (6, 6)


@pytest.mark.django_db(transaction=True)
@pytest.mark.server
def test_a_rename_that_loses_its_keys_is_told_and_not_made_worse(gateway: Gateway, admin_client: Client) -> None:
    """Each retry ran again under the new name. Recovery adds nothing to that under the old one."""
    view = idempotent(lease=60)(paying(gateway))
    with deployed(path("pay/<int:basket>/", view)):
        gateway.send("pay")
    with deployed(path("payments/<int:basket>/", view), path("admin/", admin.site.urls)):
        assert gateway.send("payments") == [201] * 6
        told = [(message.id, message.msg) for message in check_databases(["default"]) if "W016" in message.id]
        errors = StringIO()
        call_command("idempotency_endpoints", database="default", stdout=StringIO(), stderr=errors)
        pages = [reverse(name) for name in ("admin:django_idempotency_idempotencykey_changelist", "admin:index")]
        texts = [admin_client.get(page).content.decode() for page in pages]
        twice = ran_twice()
    assert (Order.objects.count(), gateway.charged()) == (9, 12)
    lost = (
        "database 'default' stores keys of 'POST pay/<int:basket>/', but no endpoint has that name: their retries run "
        "again."
    )
    assert (told, errors.getvalue()) == ([("django_idempotency.W016", lost)], f"{lost}\n")
    for page in texts:
        assert "a customer may pay twice: POST pay/&lt;int:basket&gt;/. Was the route or the operation renamed?" in page

    # Three got two orders, although none of their keys needs attention. All six were charged twice.
    status, lines, last = twice
    assert (status, len(lines), last) == (
        3,
        7,
        "6 keys of 'POST pay/<int:basket>/' also ran under another operation.",
    )
    assert sum("'POST pay/<int:basket>/' completed (" in line for line in lines) == 3
    assert sum("'POST pay/<int:basket>/' failed (" in line for line in lines) == 3
    assert all("; 'POST payments/<int:basket>/' completed (" in line for line in lines[:-1])

    def settle(operation: Any) -> HttpResponse:
        operation.call("charge", gateway.charge, f"c{operation.key[-1]}", operation.derive_key("charge"))
        operation.write("order", Order.objects.create)
        return HttpResponse(status=201)

    renamed = idempotent(lease=60, operation="POST pay/<int:basket>/", reconcile=settle)(paying(gateway))
    left: list[Any] = []
    with deployed(path("payments/<int:basket>/", renamed)):
        assert unknown_operations() == ["POST payments/<int:basket>/"]
        result = recover_idempotency_keys(older_than=0, progress=left.append)
    assert (result.completed, result.left, Order.objects.count(), gateway.charged()) == (0, 3, 9, 12)
    assert {(asked.outcome, asked.reason) for asked in left} == {
        (
            "left",
            "its caller's key is completed as 'POST payments/<int:basket>/'. If that is the same request, close this "
            "key, after a refund if both were charged",
        )
    }


def ran_twice(*options: str) -> tuple[int, list[str], str]:
    """The command's exit status, its lines, and the last of them."""
    said, status = StringIO(), 0
    try:
        call_command("renamed_idempotency_keys", *options, stdout=said)
    except CommandError as error:
        status = error.returncode
    lines = said.getvalue().splitlines()
    return status, lines, lines[-1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.server
def test_by_the_chapter_each_customer_keeps_one_charge_and_one_order(gateway: Gateway) -> None:
    """Paused, listed, undone and answered; the old route is back: retries to both paths change nothing any more."""
    view = idempotent(lease=60)(paying(gateway))
    with deployed(path("pay/<int:basket>/", view)):
        assert gateway.send("pay") == [500, 500, 500, 201, 201, 201]
    with deployed(path("payments/<int:basket>/", view)):
        gateway.send("payments")
        with override_settings(IDEMPOTENCY={"PAUSED": True}):
            assert gateway.send("payments") == [503] * 6
        undone = [old for old, _ in sent_to_two_operations(unknown_operations())]
    assert (Order.objects.count(), gateway.charged(), len(undone)) == (9, 12, 6)
    for old in undone:
        if old.status != "completed":
            close_with(old, Snapshot(status_code=409, headers=(), body=b"refunded"), by="ada", confirmed=True)
    with deployed(*(path(f"{route}/<int:basket>/", view) for route in ("payments", "pay"))):
        assert gateway.send("pay") == [409, 409, 409, 201, 201, 201]
        assert gateway.send("payments") == [201] * 6
        assert ran_twice()[::2] == (
            0,
            "Every stored operation has its endpoint. To look at one of them, pass its old name: --operation.",
        )
        assert ran_twice("--operation", "POST pay/<int:basket>/")[0] == 3
    assert (Order.objects.count(), gateway.charged()) == (9, 12)


@pytest.mark.django_db
def test_keys_of_others_and_of_one_operation_did_not_run_twice() -> None:
    """The same text of another caller, another key of the same one, and a key that only the old operation has."""
    create_key("k", operation="old", scope="s")
    create_key("k", operation="new", scope="t")
    create_key("l", operation="new", scope="s")
    with deployed():
        assert ran_twice("--operation", "old")[::2] == (0, "0 keys of 'old' also ran under another operation.")
        create_key("k", operation="new", scope="s")
        ((old, new),) = sent_to_two_operations(["old"])
    assert (old.operation, new.operation, new.scope) == ("old", "new", "s")


class Chosen(IdempotencyMixin, View):
    def get_idempotency_options(self) -> Any:
        return {"operation": "chosen"}

    def post(self, request: HttpRequest) -> HttpResponse:
        raise AssertionError


@pytest.mark.django_db
def test_explicit_names_are_told_and_those_of_jobs_are_not(settings: Any) -> None:
    """A key of `run_once` is recognized by its result, encrypted or not, and by the name of its function."""
    create_key("k", operation="pay a basket")
    create_key("k", operation="undecided", in_doubt=["charge"])
    run_once(job_result, scope="s", key="k", operation="import payments", payload=b"1")
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    run_once(job_result, scope="s", key="k", operation="import refunds", payload=b"1")
    run_once(job_result, scope="s", key="k", payload=b"1")
    with deployed():
        assert unknown_operations() == ["pay a basket", "undecided"]
    with deployed(path("chosen/", Chosen.as_view())):
        assert unknown_operations() == []
        create_key("k", operation="POST gone/")
        assert unknown_operations() == ["POST gone/"]
    settings.IDEMPOTENCY = {}
    with deployed():  # what cannot be read is no result of a job
        assert "import refunds" in unknown_operations()


def job_result() -> int:
    return 5


@pytest.mark.django_db
@pytest.mark.parametrize("dry_run", [True, False])
def test_only_the_same_caller_and_key_count(dry_run: bool) -> None:
    """A completed key of somebody else, another key, and one that is not completed change nothing."""
    asked: list[Any] = []

    def settle(operation: Any) -> HttpResponse:
        asked.append(operation.key)
        return HttpResponse()

    view = idempotent(lease=60, operation=f"old {dry_run}", reconcile=settle)(lambda request: HttpResponse())
    create_key("k", operation=f"old {dry_run}", scope="s", in_doubt=["charge"])
    create_key("k", operation="new", scope="t")
    create_key("l", operation="new", scope="s")
    create_key("k", operation="newer", scope="s", status="failed")
    with deployed(path("new/", view)):
        told: list[Any] = []
        recover_idempotency_keys(older_than=0, progress=told.append, dry_run=dry_run)
    assert [one.outcome for one in told] == ["would ask" if dry_run else "completed"]
    assert asked == ([] if dry_run else ["k"])


@pytest.mark.django_db(databases=["default", "other"])
def test_the_other_name_counts_in_the_keys_own_database() -> None:
    view = idempotent(lease=60, operation="old elsewhere", reconcile=not_named)(not_named)
    create_key("k", operation="old elsewhere", scope="s", in_doubt=["charge"], using="other")
    create_key("k", operation="new", scope="s", using="other")
    with deployed(path("new/", view)):
        told: list[Any] = []
        recover_idempotency_keys(using="other", older_than=0, progress=told.append)
    assert [(one.outcome, one.reason.partition(".")[0]) for one in told] == [
        ("left", "its caller's key is completed as 'new'")
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("stored", "listed"),
    [
        ("POST de/pay/", []),
        ("POST en/pay/", []),
        ("POST pay/", ["POST pay/"]),
        ("POST de/old/", ["POST de/old/"]),
        ("POST shown/", ["POST shown/"]),
        ("import payments", ["import payments"]),
    ],
)
def test_an_endpoint_has_a_route_for_each_language(stored: str, listed: list[str]) -> None:
    """Whichever is current. Keys of a view that is no longer protected are told, too; explicit names, too."""
    create_key("k", operation=stored)
    create_key("l", operation="named")
    view = idempotent(paying)
    urls = [
        *i18n_patterns(path("pay/", view)),
        path("shown/", paying),
        path("x/", idempotent(operation="named")(paying)),
    ]
    with deployed(*urls):
        assert unknown_operations() == listed
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert unknown_operations() == []


@pytest.mark.django_db(databases=["default", "other"])
def test_keys_are_looked_for_in_their_own_database() -> None:
    """Those that expire next, and one that needs attention, which never expires. Another URLconf has other routes."""
    create_key("k", operation="POST gone/", status="failed", using="other")
    past = timezone.now() - timedelta(days=1)
    IdempotencyKey.objects.using("other").update(unknown=1, attention_at=past, expires_at=past)
    create_key("l", operation="POST hidden/", using="other")
    with deployed():
        lost = [unknown_operations(using=alias) for alias in ("default", "other")]
        assert lost == [[], ["POST gone/", "POST hidden/"]]
    with deployed(path("gone/", idempotent(paying))), override_settings(ROOT_URLCONF="tests.urls"):
        lost = [unknown_operations(using="other", urlconf=urls) for urls in (None, "urls_of_this_deployment")]
        assert lost == [["POST gone/", "POST hidden/"], ["POST hidden/"]]


@pytest.mark.django_db
def test_before_the_first_migration_nothing_is_looked_for() -> None:
    """`migrate` runs the checks, too."""
    with without_tables("default"):
        assert "django_idempotency.W016" not in {message.id for message in check_databases(["default"])}


def test_a_leased_view_should_have_a_name_of_its_own() -> None:
    """W015 says what a rename would cost."""
    views = (idempotent(lease=60)(not_named), idempotent(lease=60, operation="pay")(paying), idempotent(paying))
    with deployed(*(path(f"{number}/", view) for number, view in enumerate(views))):
        (message,) = check_urls()
    assert (message.id, message.msg) == (
        "django_idempotency.W015",
        f"{__name__}.not_named has a lease and no operation=. If its route is renamed, a retry runs again under the "
        "new name, with another derived key: the customer is charged twice.",
    )


def not_named(request: HttpRequest) -> HttpResponse:
    raise AssertionError
