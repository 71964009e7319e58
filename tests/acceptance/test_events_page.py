"""The page about events: what its consumers do with late deliveries, and with messages that fail."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import F
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order, Outbox

EVENT = {"id": "evt_1", "order": "a book", "amount": 5}


def almost_a_month_later() -> None:
    """As seen by the keys."""
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=29))


@pytest.fixture
def _no_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """These two refuse a second task named `ship` in one process. tests/extra/projects/test_brokers.py runs them."""
    decorator = lambda **options: lambda function: function  # noqa: E731
    monkeypatch.setitem(sys.modules, "celery", SimpleNamespace(shared_task=decorator))
    monkeypatch.setitem(sys.modules, "dramatiq", SimpleNamespace(actor=decorator))


@pytest.mark.usefixtures("_no_registries")
def test_a_deadlock_after_many_retries_does_not_end_a_dramatiq_task(run: Any) -> None:
    """A pause of some hours is more than 20 retries."""
    retry = run("docs/events.md", "shop/dramatiq_tasks.py").retry
    assert retry(25, OperationalError("deadlock detected"))
    assert not retry(25, ValueError("a bug"))


@pytest.mark.django_db
@pytest.mark.usefixtures("_no_registries")
@pytest.mark.parametrize(
    ("package", "block", "function", "given"),
    [
        ("django", "shop/events.py", "place_order", EVENT),
        pytest.param("django", "shop/outbox.py", "place_order", EVENT, marks=pytest.mark.only_on("postgresql")),
        ("django", "shop/stream.py", "place_order", EVENT),
        ("django", "shop/receiver.py", "receive", RequestFactory().post("/", EVENT, content_type="application/json")),
        ("celery", "shop/celery_tasks.py", "ship", "7"),
        ("django.tasks", "shop/tasks.py", "ship_once", "7"),
        ("procrastinate", "shop/procrastinate_tasks.py", "ship", "7"),
        ("huey", "shop/huey_tasks.py", "ship_once", "7"),
        ("dramatiq", "shop/dramatiq_tasks.py", "ship", "7"),
    ],
)
def test_a_late_delivery_makes_no_second_order(run: Any, package: str, block: str, function: str, given: Any) -> None:
    """A queue, a sender or cron may deliver again for weeks."""
    pytest.importorskip(package)
    work = getattr(run("docs/events.md", block, __name__="late"), function)  # huey has seen "documented"
    work(given)
    almost_a_month_later()
    work(given)
    assert Order.objects.count() == 1


@pytest.mark.django_db
def test_a_receiver_answers_what_run_once_raises(run: Any, rf: Any, monkeypatch: Any) -> None:
    """A duplicate of a running delivery gets 409 and `Retry-After`, not 500."""
    page = run("docs/events.md", "shop/receiver.py")
    delivery = rf.post("/hook", {"id": "evt_1", "amount": 5}, content_type="application/json")
    answers = [page.receive(delivery), page.receive(delivery)]
    assert answers[0].content == answers[1].content == b'{"order": %d}' % Order.objects.get().pk
    create_key("evt_2", scope="gateway", operation="receive", status="in_progress")
    running = rf.post("/hook", {"id": "evt_2", "amount": 5}, content_type="application/json")
    monkeypatch.setattr(page, "timedelta", lambda seconds: 0)
    refused = page.receive(running)
    assert (refused.status_code, refused.headers["Retry-After"]) == (409, "60")


@pytest.mark.django_db
def test_a_task_hands_a_deadlock_back_to_its_queue(run: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends `FAILED` never runs again."""
    tasks = pytest.importorskip("django.tasks")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    module = run("docs/events.md", "shop/tasks.py")

    def deadlock(**fields: Any) -> None:
        raise OperationalError("deadlock detected")

    monkeypatch.setattr(Order.objects, "create", deadlock)
    module.ship.call("7")
    (again,) = tasks.default_task_backend.results
    assert again.args == ["7"]


@pytest.mark.django_db
def test_a_task_hands_not_now_back_to_its_queue(run: Any, settings: Any) -> None:
    """`django.tasks` has no retry of its own, and would call the task failed."""
    tasks = pytest.importorskip("django.tasks")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    settings.IDEMPOTENCY = {"WAIT": 0}
    module = run("docs/events.md", "shop/tasks.py")
    create_key("7", scope="tasks", operation="documented.ship_once", status="in_progress")
    before = timezone.now()
    assert [module.ship.call("7"), module.ship.call("8")] == [None, Order.objects.get().pk]
    (again,) = tasks.default_task_backend.results
    assert again.args == ["7"]
    assert again.task.run_after >= before + timedelta(seconds=30)


class Stream:
    """A Redis stream, as far as the recipe sees it: what is pending comes before what is new."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.new, self.pending, self.dead = list(enumerate(events)), dict[int, Any](), list[Any]()

    def xautoclaim(self, *args: Any, count: int, **kwargs: Any) -> Any:
        return "0-0", [*self.pending.items()][:count], []

    def xreadgroup(self, *args: Any, count: int, **kwargs: Any) -> Any:
        found, self.new = self.new[:count], self.new[count:]
        self.pending.update(found)
        return [("orders", found)] if found else []

    def xadd(self, name: str, event: Any) -> None:
        self.dead.append(event)

    def xack(self, stream: str, group: str, number: int) -> None:
        del self.pending[number]


GOOD = [{"id": f"good-{number}", "order": "a book", "amount": 1} for number in range(2)]
BAD = {"id": "bad"}
KEYLESS = {"id": "", "order": "a book", "amount": 1}


@pytest.mark.django_db
def test_a_bad_message_of_a_stream_stops_no_other(run: Any) -> None:
    """It stays pending. One without a usable key, which no retry can help, is a dead letter."""
    redis, consume = Stream(BAD, KEYLESS, *GOOD), run("docs/events.md", "shop/stream.py").consume
    for _ in range(2):
        consume(redis, "worker")
    assert (list(redis.pending.values()), redis.dead, Order.objects.count()) == ([BAD], [KEYLESS], 2)


@pytest.mark.django_db
def test_a_bad_message_of_a_queue_stops_no_other(run: Any) -> None:
    """It isn't acknowledged. One without a usable key, which no retry can help, is a dead letter."""
    acknowledged: list[Any] = []
    dead: list[Any] = []
    run("docs/events.md", "shop/events.py").consume([BAD, KEYLESS, *GOOD], acknowledged.append, dead.append)
    assert (acknowledged, dead, Order.objects.count()) == (GOOD, [KEYLESS], 2)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_a_bad_row_of_an_outbox_stops_no_other(run: Any) -> None:
    """Each of the others is published once, and the bad one stays."""
    Outbox.objects.bulk_create(Outbox(payload=payload) for payload in (GOOD[0], BAD, GOOD[1]))
    published: list[Any] = []

    def publish(payload: Any) -> None:
        if payload == BAD:
            raise ValueError("too long for the broker")
        published.append(payload)

    for _ in range(2):
        run("docs/events.md", "shop/outbox.py").relay(publish)
    assert (published, Outbox.objects.get().payload) == (GOOD, BAD)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_an_asyncio_consumer_works_on_several_messages(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each work waits, inside its transaction, until the other one runs. A second delivery is replayed."""
    consume = run("docs/events.md", "shop/aio_consumer.py").consume
    events, running = [{"id": "one", "order": "a"}, {"id": "two", "order": "b"}], asyncio.Barrier(2)

    async def together(event: Any) -> Any:
        async with asyncio.timeout(20):
            await running.wait()
        return (await Order.objects.acreate(reference=event["order"])).pk

    monkeypatch.setattr(sys.modules["documented"], "place", together)
    first = asyncio.run(consume(events, anyhow))
    almost_a_month_later()
    again = asyncio.run(consume(events, anyhow))
    orders = list(Order.objects.order_by("reference").values_list("pk", flat=True))
    assert [(done.value, done.replayed) for done in first] == [(pk, False) for pk in orders]
    assert [(done.value, done.replayed) for done in again] == [(pk, True) for pk in orders]
    assert len(orders) == 2


async def anyhow(event: Any) -> None:
    """Acknowledge."""


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_an_asyncio_consumer_acknowledges_what_is_done(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a message whose work was the victim of a deadlock."""
    consume = run("docs/events.md", "shop/aio_consumer.py").consume
    place = vars(sys.modules["documented"])["place"]
    acknowledged: list[str] = []

    async def unlucky(event: Any) -> Any:
        if event["id"] == "deadlock":
            raise OperationalError("deadlock detected")
        return await place(event)

    async def acknowledge(event: Any) -> None:
        acknowledged.append(event["id"])

    monkeypatch.setattr(sys.modules["documented"], "place", unlucky)
    events = [{"id": "deadlock", "order": "a"}, {"id": "done", "order": "b"}]
    failed, done = asyncio.run(consume(events, acknowledge))
    assert (type(failed), done.replayed, acknowledged) == (OperationalError, False, ["done"])


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_two_refunds_of_one_payment_at_once_are_both_booked(run: Any, serve: Any, in_threads: Any) -> None:
    """Each under its own id, and delivered twice: the row that both change is locked."""
    hooks = run("docs/events.md", "shop/webhooks.py")
    serve(path("refunded/", hooks.refunded))
    Order.objects.create(reference="a book", amount=20)

    def deliver(number: int) -> int:
        body = b'{"id": "re_%d", "type": "refunded", "order": "a book", "amount": %d}' % (number % 2, 3 + number % 2)
        signature = {"X-Signature": hooks.hmac.new(hooks.SECRET, body, "sha256").hexdigest()}
        return Client().post("/refunded/", body, content_type="application/json", headers=signature).status_code

    assert set(in_threads(4, deliver)) <= {204, 409}
    assert {deliver(number) for number in range(2)} == {204}
    assert Order.objects.get().amount == 13


@pytest.mark.django_db
def test_a_page_that_a_gateway_returns_to_books_once(run: Any, serve: Any, client: Client, gateway: Any) -> None:
    """It is loaded again, and the webhook books the same payment. An id that isn't paid books nothing."""
    paid = {"pay_1": {"id": "pay_1", "amount": 5, "status": "paid"}, "pay_2": {"id": "pay_2", "status": "open"}}
    gateway.payment = paid.get
    sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
    module = run("docs/recipes.md", "shop/returned.py")
    serve(path("returned/", module.returned))

    answers = [client.get("/returned/", {"payment": "pay_1"}) for _ in range(2)]
    module.book(paid["pay_1"])

    order = Order.objects.get()
    assert {(answer.status_code, answer["Location"]) for answer in answers} == {(302, f"/thanks/{order.pk}/")}
    for unknown in ({"payment": "pay_2"}, {"payment": "pay_3"}, {}):
        assert client.get("/returned/", unknown).status_code == 404
    assert Order.objects.count() == 1
    with pytest.raises(IdempotencyConfigurationError, match="must not change anything"):
        idempotent(methods=("GET",))
