"""The package opens the transaction itself: what that means for the view, for its caller, and for ATOMIC_REQUESTS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Event
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, async_to_sync, sync_to_async
from django.db import DatabaseError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    TransactionBroken,
    arun_once,
    get_operation,
    idempotent,
    run_once,
)
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from django_idempotency.views import IdempotencyMixin
from tests.leases import Broken
from tests.shopapp.models import Order
from tests.views import creates, paths, view_class

Post = Callable[..., Any]
ENDS: dict[str, Callable[[], Any]] = {
    "durable": lambda: transaction.atomic(durable=True).__enter__(),
    "commits": transaction.commit,
    "autocommits": lambda: transaction.set_autocommit(True),
    "closes": connection.close,
    "create": lambda: None,
}


def ends(request: HttpRequest, order: Order) -> HttpResponse:
    """Do this to the transaction."""
    ENDS[request.path[1:]]()
    return HttpResponse(status=int(request.GET.get("status", 201)))


def atomic(*args: Any) -> HttpResponse:
    return JsonResponse({"atomic": connection.in_atomic_block})


optional = idempotent(required=False)
urlpatterns = paths(
    optional=optional(creates(then=atomic)),
    opted_out=transaction.non_atomic_requests(optional(atomic)),
    # The server ends a session that was closed a moment later, and its lock lives until then.
    **{name: idempotent(wait=30 if name == "closes" else 0)(creates(then=ends)) for name in ENDS},
)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.kept.test_transactions")]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/durable", RuntimeError),
        ("/commits", TransactionManagementError),
        ("/autocommits", TransactionManagementError),
    ],
)
def test_the_view_cannot_commit_by_itself(post: Post, path: str, error: type[Exception]) -> None:
    """durable=True, commit() and set_autocommit() fail as under ATOMIC_REQUESTS, and leave nothing."""
    for _ in range(2):
        with pytest.raises(error):
            post(path)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


@pytest.mark.parametrize(("status", "keys"), [(200, 0), (400, 1), (500, 0)])
def test_a_view_that_closes_its_connection_promises_nothing(post: Post, status: int, keys: int) -> None:
    """The database has rolled back: no success is answered, and the key is free, or has the refusal."""
    if status == 200:
        with pytest.raises(TransactionBroken):
            post("/closes?status=200")
    else:
        assert post(f"/closes?status={status}").status_code == status
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, keys)


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.urls("tests.leased_urls")
def test_a_refusal_leaves_no_lock_in_the_outer_transaction(post: Post, in_threads: Callable[..., Any]) -> None:
    """That goes on for as long as its caller likes, and a person may want to decide about the key."""
    create_key("k", operation="changed", steps={"charge": 1})

    def lock(number: int) -> bool:
        with transaction.atomic():
            return IdempotencyKey.objects.select_for_update(nowait=True).exists()

    with transaction.atomic():
        assert post("/changed/atomic", key="k").status_code == 409
        assert in_threads(1, lock) == [True]


@pytest.mark.only_on("sqlite")
def test_a_busy_sqlite_is_503_and_nothing_runs(post: Post, in_threads: Callable[..., Any]) -> None:
    """Whoever writes holds every key, so nobody can say whose: come back, unchanged."""
    locked, answered = Event(), Event()

    def writer() -> None:
        with transaction.atomic():
            locked.set()
            assert answered.wait(30), "the request was never answered"

    def sender() -> Any:
        assert locked.wait(30), "the writer never had its lock"
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
        try:
            return post("/create", client=Client())
        finally:
            answered.set()

    _, response = in_threads(2, lambda number: (writer, sender)[number]())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json()["code"] == "busy"
    assert Order.objects.count() == 0
    assert post("/create").status_code == 201


@pytest.mark.usefixtures("atomic_requests")
class TestAtomicRequests:
    def test_an_optional_key_keeps_the_transaction(self, post: Post) -> None:
        """Passing through is as Django would have done."""
        assert post("/optional", key=None).json()["atomic"] is True

    def test_a_view_that_opted_out_stays_out(self, post: Post) -> None:
        """non_atomic_requests is respected."""
        assert post("/opted_out", key=None).json() == {"atomic": False}

    def test_a_view_that_opted_out_of_another_alias_stays_out_there(self) -> None:
        """The alias of the keys is taken over beside it."""
        guarded: Any = idempotent(transaction.non_atomic_requests(using="other")(creates()))
        assert [alias in guarded._non_atomic_requests for alias in ("other", "default", "third")] == [
            True,
            True,
            False,
        ]


async def its_key(request: HttpRequest, of: str = "a class") -> HttpResponse:
    return HttpResponse(f"{get_operation(request).key} of {of}")


async def fails_after_a_write(request: HttpRequest) -> HttpResponse:
    await Order.objects.acreate()
    raise Broken


ASYNCHRONOUS = paths(
    switched=view_class(IdempotencyMixin, View, post=fails_after_a_write, idempotency=None).as_view(),
    dispatched=method_decorator(idempotent, name="dispatch")(view_class(get=fails_after_a_write)).as_view(),
    **{"class": view_class(IdempotencyMixin, View, post=its_key, put=its_key).as_view()},
    **{"<of>": idempotent(required=False)(its_key)},
)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("atomic", [False, True])
class TestAsynchronousViews:
    @pytest.fixture(autouse=True)
    def send(self, client: Any, atomic: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
        """With and without ATOMIC_REQUESTS, under WSGI and ASGI."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
        urls = ModuleType("asynchronous_urls")
        urls.urlpatterns = ASYNCHRONOUS  # type: ignore[attr-defined]

        def sent(method: str, to: str) -> Any:
            call = getattr(client(), method)
            return (async_to_sync(call) if client is AsyncClient else call)(to)

        with override_settings(ROOT_URLCONF=urls):
            yield sent

    def test_each_method_has_an_operation_without_a_key(self, send: Any) -> None:
        """`request.idempotency` is there whether or not the method is protected."""
        sent = [send("get", "/function"), send("put", "/function"), send("post", "/function"), send("put", "/class")]
        assert [response.content for response in sent] == [b"None of function"] * 3 + [b"None of a class"]

    def test_django_itself_answers_options_and_405(self, send: Any) -> None:
        """By a plain method that returns an awaitable."""
        assert [send(method, "/class").status_code for method in ("options", "delete")] == [200, 405]

    def test_a_class_that_is_switched_off_keeps_the_guard(self, send: Any, atomic: bool) -> None:
        """The mixin has taken Django's transaction away for it, too."""
        with pytest.raises(Broken):
            send("post", "/switched")
        assert Order.objects.exists() is not atomic

    def test_a_decorated_dispatch_is_refused_under_atomic_requests(self, send: Any, atomic: bool) -> None:
        """As Django refuses it: the coroutine would run when the transaction is over."""
        with pytest.raises(IdempotencyConfigurationError if atomic else Broken, match="async def" if atomic else None):
            send("get", "/dispatched")
        assert Order.objects.exists() is not atomic


def test_an_unprotected_method_needs_no_resolver_match(rf: Any) -> None:
    """A view that is called directly, as in a unit test, passes through."""
    with transaction.atomic():
        assert idempotent(creates())(rf.put("/")).status_code == 201
    assert Order.objects.count() == 1


# --- tasks that outlive their work


Work = Callable[[], Awaitable[Any]]


async def in_a_view(work: Work) -> None:
    async def create_order(request: HttpRequest) -> HttpResponse:
        await work()
        return HttpResponse(status=201)

    await idempotent(create_order)(AsyncRequestFactory().post("/", headers={"Idempotency-Key": "k"}))


async def in_a_function(work: Work) -> None:
    await arun_once(work, scope="s", key="k", operation="order")


async def in_a_step(work: Work) -> None:
    async def places(operation: Operation) -> None:
        await operation.awrite("order", work)

    await arun_once(places, scope="s", key="k", operation="pay", lease=60)


async def in_a_synchronous_view(work: Work) -> None:
    def create_order(request: HttpRequest) -> HttpResponse:
        async_to_sync(work)()
        return HttpResponse(status=201)

    await sync_to_async(idempotent(create_order))(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))


async def in_a_synchronous_step(work: Work) -> None:
    def places(operation: Operation) -> None:
        operation.write("order", async_to_sync(work))

    await arun_once(places, scope="s", key="k", operation="pay", lease=60)


@pytest.mark.parametrize("run", [in_a_view, in_a_function, in_a_step, in_a_synchronous_view, in_a_synchronous_step])
def test_a_task_left_behind_by_gather_does_not_write(run: Callable[[Work], Awaitable[None]]) -> None:
    """`gather` raises the first error at once, and the others go on. Above us is a bridge of the same connection: under
    WSGI Django's own, in a command the project's."""

    async def fails() -> None:
        raise Broken

    async def client() -> list[Any]:
        ended, left_behind = asyncio.Event(), []

        async def places() -> None:
            left_behind.append(asyncio.current_task())
            assert not await Order.objects.aexists()  # inside the transaction
            await ended.wait()
            await Order.objects.acreate()

        async def work() -> None:
            await asyncio.gather(places(), fails())

        with pytest.raises(Broken):
            await run(work)
        ended.set()
        return await asyncio.gather(*left_behind, return_exceptions=True)

    (error,) = async_to_sync(client)()
    assert isinstance(error, RuntimeError)
    assert not Order.objects.exists()


def test_behind_the_work_the_outer_bridge_is_there_again() -> None:
    """What the rest of the view awaits is as without us."""

    def bridges() -> list[Any]:
        before = AsyncToSync.executors.current
        run_once(lambda: 1, scope="s", key="k", operation="order")
        return [before, AsyncToSync.executors.current]

    before, after = async_to_sync(sync_to_async(bridges))()
    assert before is after is not None


def test_a_task_beside_the_work_is_not_in_its_transaction() -> None:
    """It waits for the thread, and its row stays when the work is rolled back."""

    async def client() -> None:
        begun = asyncio.Event()

        async def fails() -> None:
            begun.set()
            await asyncio.sleep(0)  # the other task asks for the thread
            raise Broken

        async def beside() -> None:
            await begun.wait()
            await Order.objects.acreate()

        work = arun_once(fails, scope="s", key="k", operation="order")
        failed, _ = await asyncio.gather(work, beside(), return_exceptions=True)
        assert isinstance(failed, Broken)

    async_to_sync(client)()
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_error_in_a_savepoint_is_forgotten_with_the_commit() -> None:
    """Otherwise, Django would ask the connection at the end of the request whether it works."""

    def work() -> None:
        with suppress(DatabaseError), transaction.atomic():
            Order.objects.raw("SELECT id FROM nowhere")[0]
        assert connection.errors_occurred
        transaction.on_commit(lambda: done.append(1))

    done: list[int] = []
    run_once(work, scope="s", key="k", operation="o")
    assert done == [1]
    assert not connection.errors_occurred
