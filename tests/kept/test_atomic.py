"""The atomic promise (atomic.py): what becomes of the business write and of the key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import RequestFactory

from django_idempotency import ClaimLost, TransactionBroken, idempotent, run_once
from django_idempotency.engine.stores import _store, store_for
from django_idempotency.models import IdempotencyKey
from tests import view_urls
from tests.http import replayed
from tests.shopapp.models import Ledger, Order
from tests.views import creates, paths

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.kept.test_atomic")]


def swallow(request: HttpRequest, order: Order) -> HttpResponse:
    """Hide a database error and answer as if nothing had happened."""
    Ledger.objects.create(entry="once")
    try:
        if request.GET.get("raw"):
            connection.cursor().execute("SELECT 1/0")
        else:
            Ledger.objects.create(entry="once")
    except Exception:
        return HttpResponse("hidden", status=int(request.GET["status"]))
    raise AssertionError("there was no error to hide")


def dry_run(request: HttpRequest) -> HttpResponse:
    """Write, and ask Django to roll back: the writes, or those of an inner block."""
    inner = transaction.atomic(savepoint="savepoint" in request.GET) if "inner" in request.GET else nullcontext()
    with inner:
        Order.objects.create()
        transaction.set_rollback(True)
    return HttpResponse("dry", status=int(request.GET["status"]))


def gives_up(request: HttpRequest) -> HttpResponse:
    """Catch a failure in a block without a savepoint, after a rollback that an inner block has had."""
    with transaction.atomic():
        transaction.set_rollback(True)
    transaction.set_rollback(True)
    transaction.set_rollback(False)
    Order.objects.create()
    with suppress(ValueError), transaction.atomic(savepoint=False):
        raise ValueError
    return HttpResponse("hidden")


def handled(request: HttpRequest) -> HttpResponse:
    """Handle a database error as Django's documentation says."""
    Ledger.objects.create(entry="once")
    try:
        with transaction.atomic():
            Ledger.objects.create(entry="once")
    except IntegrityError:
        return HttpResponse("handled")
    raise AssertionError("there was no error to handle")


def template(request: HttpRequest, order: Order) -> HttpResponse:
    body = engines["django"].from_string("{{ orders }} in {{ atomic }}")
    context = {"orders": Order.objects.count, "atomic": lambda: connection.in_atomic_block}
    return TemplateResponse(request, body, context)


urlpatterns = view_urls.urlpatterns + paths(
    *map(idempotent, (dry_run, gives_up, handled)),
    swallow=idempotent(creates(then=swallow)),
    template=idempotent(creates(then=template)),
)


@pytest.mark.django_db(transaction=True)
def test_an_error_after_commit_propagates_with_the_key_completed(post: Post) -> None:
    """The order is there, so a retry replays."""
    with pytest.raises(IndexError):
        post("/fail_after_commit")
    assert replayed(post("/fail_after_commit")) == "true"
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_error_after_commit_is_not_taken_for_a_lost_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some databases, this code says that a duplicate may have won. After COMMIT, it is the callback's own."""
    deadlock = OperationalError("deadlock")
    store = store_for("default")
    monkeypatch.setattr(type(store), "rolled_back", frozenset({store.code(deadlock)}))

    def fail() -> None:
        raise deadlock

    def place() -> int:
        transaction.on_commit(fail)
        return int(Order.objects.create().pk)

    with pytest.raises(OperationalError, match="deadlock"):
        run_once(place, scope="s", key="k", operation="o")
    assert run_once(place, scope="s", key="k", operation="o").replayed
    assert Order.objects.count() == 1


@pytest.mark.only_on("postgresql")  # which aborts the transaction by itself
def test_a_hidden_error_of_a_raw_statement_is_never_a_success(post: Post) -> None:
    """A 2xx is not answered for work that did not commit."""
    with pytest.raises(TransactionBroken, match=r"with transaction\.atomic\(\)"):
        post("/swallow?status=200&raw=1")
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("status", [400, 422, 499])
def test_a_refusal_after_a_hidden_database_error_is_kept(post: Post, status: int) -> None:
    """A 4xx may stand without the writes."""
    first, second = (post(f"/swallow?status={status}") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (status, "false", "true")
    assert not Order.objects.exists()


def test_a_server_error_after_a_hidden_database_error_is_passed_on(post: Post) -> None:
    """It rolls back as any 5xx."""
    assert post("/swallow?status=500").status_code == 500
    assert not Order.objects.exists()


@pytest.mark.parametrize("inner", ["", "&inner", "&inner&savepoint"])
@pytest.mark.parametrize(("status", "marks"), [(200, "true"), (400, "true"), (429, "false"), (503, "false")])
def test_a_rollback_that_the_view_asks_for_is_no_error(post: Post, status: int, marks: str, inner: str) -> None:
    """A dry run: nothing is written, and `record` decides about the answer as always."""
    first, second = (post(f"/dry_run?status={status}{inner}") for _ in range(2))
    assert (first.status_code, first.content, replayed(first), replayed(second)) == (status, b"dry", "false", marks)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 1 if marks == "true" else 0)


def test_a_hidden_failure_after_a_rollback_of_something_else_is_no_success(post: Post) -> None:
    """What was asked for is about another block, or was taken back."""
    with pytest.raises(TransactionBroken, match=r"with transaction\.atomic\(\)"):
        post("/gives_up")
    assert not Order.objects.exists()


def test_a_handled_database_error_commits(post: Post) -> None:
    """The view's own atomic() works inside ours."""
    assert [replayed(post("/handled")) for _ in range(2)] == ["false", "true"]
    assert Ledger.objects.count() == 1


def test_templates_are_rendered_inside_the_transaction(post: Post) -> None:
    """What the template reads belongs to the answer."""
    first, second = post("/template"), post("/template")
    assert first.content == second.content == b"1 in True"


def test_the_view_must_leave_the_claim_alone(post: Post, settings: Any) -> None:
    """A deleted claim is an error, not a success."""

    @idempotent
    def vandal(request: Any) -> Any:
        Order.objects.create()
        IdempotencyKey.objects.all().delete()
        return HttpResponse()

    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    request.user = AnonymousUser()
    with pytest.raises(ClaimLost):
        vandal(request)
    assert not Order.objects.exists()


class Interrupted(Exception):
    """As the handler of a signal raises it."""


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Raise once when the statement that stands here is done: Django logs it before it notes what has changed."""
    moments: list[str] = []

    def interrupt(record: logging.LogRecord) -> bool:
        if moments and str(getattr(record, "sql", "")).startswith(moments[0]):
            moments.clear()
            raise Interrupted
        return True

    logger = logging.getLogger("django.db.backends")
    monkeypatch.setattr(connections["default"], "force_debug_cursor", True)
    caplog.set_level(logging.DEBUG, logger.name)  # it also forgets what an earlier test has asked about the level
    logger.addFilter(interrupt)
    yield moments
    logger.removeFilter(interrupt)


def place() -> int:
    return run_once(lambda: Order.objects.create().pk, scope="s", key="k", operation="o").value


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("moment", ["BEGIN", "COMMIT"])
def test_an_exception_while_the_transaction_begins_or_ends(
    interrupted_at: list[str], moment: str, in_threads: Callable[..., Any]
) -> None:
    """The connection is not left in it: what comes next is committed, inside and outside of a key."""
    interrupted_at.append(moment)
    with pytest.raises(Interrupted):
        place()
    assert not connection.in_atomic_block
    Order.objects.create()
    place()
    assert in_threads(1, lambda number: Order.objects.count()) == [2]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("moment", ["SAVEPOINT", "RELEASE SAVEPOINT"])
def test_an_exception_while_a_part_of_the_callers_transaction_begins_or_ends(
    interrupted_at: list[str], moment: str
) -> None:
    """What it has written is perhaps still there, so a caller who catches it cannot commit."""

    @transaction.atomic
    def goes_on() -> None:
        Order.objects.create()
        interrupted_at.append(moment)
        with suppress(Interrupted):
            place()
        Order.objects.create()

    with pytest.raises(TransactionManagementError):
        goes_on()
    assert not connection.in_atomic_block
    place()
    assert Order.objects.count() == 1


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", [False, True], ids=["for a claim", "in a new process, to ask which database it is"])
def test_an_exception_while_the_connection_opens(first: bool) -> None:
    """It is not used: its time zone and role are perhaps not set."""

    def interrupt(**sent: Any) -> None:
        raise Interrupted

    store_for("default")
    if first:
        _store.cache_clear()
    connection.close()
    connection_created.connect(interrupt)
    try:
        with pytest.raises(Interrupted):
            place()
    finally:
        connection_created.disconnect(interrupt)
    assert connection.connection is None
    place()
    assert Order.objects.count() == 1
