"""`Operation`: the named steps of one attempt, and the fence that each of them has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db.models import F, Model, Value
from django.db.models.functions import Lower
from django.utils import timezone

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    ResultLost,
    ResultNotStorable,
    run_once,
)
from django_idempotency.engine.execution import attempt as attempt_module
from django_idempotency.engine.execution.memory import MemoryJournal
from django_idempotency.maintenance import half_done
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.keyed import PARTS
from tests.leased_urls import HOOKS
from tests.leases import Broken, breaks, lapse, row
from tests.shopapp.models import File, Keyed, Order, Thumbnail

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


class TestSteps:
    def run(self, post: Post, view: Callable[[Any], Any]) -> Any:
        HOOKS["view"] = lambda request: view(request.idempotency)
        return post("/hooked").json()["result"]

    def test_another_operation_inside_a_step_has_its_own_steps(self, post: Post) -> None:
        def pays(operation: Operation) -> Any:
            return operation.call("charge", lambda: "paid")

        def nested(operation: Any) -> Any:
            return operation.call(
                "pay", lambda: run_once(pays, scope="s", key="other", operation="pay", lease=60).value
            )

        assert self.run(post, nested) == "paid"

    def test_a_result_that_the_work_never_got_completes_no_key(
        self, post: Post, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when a signal's exception strikes between the COMMIT of a call and its return."""
        monkeypatch.setattr(attempt_module, "as_stored", breaks)

        def gives_up(operation: Any) -> str:
            with suppress(Broken):
                operation.call("charge", lambda: "charged")
            return "time is up"

        assert self.run(post, gives_up) == "time is up"
        assert (row().status, half_done().count()) == ("failed", 1)

    def test_a_result_may_also_be_read_from_the_results(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attempt_module, "as_stored", breaks)

        def looks_it_up(operation: Any) -> Any:
            with suppress(Broken):
                operation.call("charge", lambda: "charged")
            return operation.results

        assert self.run(post, looks_it_up) == {"charge": "charged"}
        assert row().status == "completed"

    def test_a_result_that_cannot_be_kept_leaves_the_call_done(self, post: Post) -> None:
        """The money has moved: it is not called again, and no attempt gets another value in its place."""
        with pytest.raises(ResultNotStorable, match="object cannot be kept as JSON"):
            self.run(post, lambda operation: operation.call("charge", object))
        assert IdempotencyStep.objects.get().finished_at is not None
        with pytest.raises(ResultLost, match="'charge' took effect, and its value was lost"):
            self.run(post, lambda operation: operation.call("charge", breaks))
        assert half_done().count() == 1

    @pytest.mark.parametrize(
        "value",
        [
            *(float("nan"), {1: object()}, "x" * 2**21),
            *(Order(reference="unsaved"), Order(pk=7), Order(pk=Lower(Value("A")))),
        ],
    )
    def test_a_write_that_cannot_be_kept_is_rolled_back(self, post: Post, value: Any) -> None:
        """Nothing was committed, so the retry starts clean. Of some instances, only the database knows the key."""

        def write() -> Any:
            Order.objects.create()
            return value

        with pytest.raises(ResultNotStorable):
            self.run(post, lambda operation: operation.write("order", write))
        assert (Order.objects.count(), IdempotencyStep.objects.count()) == (0, 0)

    def test_a_result_that_is_too_long_leaves_the_call_done(self, post: Post) -> None:
        """A megabyte is kept. One byte more is not, and the call is not made again."""
        longest = 1024 * 1024 - len('{"value": ""}')
        with pytest.raises(ResultNotStorable, match="takes 1048577 bytes as JSON, and at most 1048576 can be kept"):
            self.run(post, lambda operation: operation.call("charge", lambda: "x" * (longest + 1)))
        step = IdempotencyStep.objects.get()
        assert (step.result, step.finished_at is None) == (None, False)
        IdempotencyKey.objects.all().delete()
        assert self.run(post, lambda operation: len(operation.call("receipt", lambda: "x" * longest))) == longest

    def test_an_instance_that_is_gone_is_an_error(self, post: Post) -> None:
        """It cannot be fetched again."""

        def order(operation: Any) -> Any:
            return operation.write("order", Order.objects.create).pk

        HOOKS["view"] = lambda request: (order(request.idempotency), breaks())
        with pytest.raises(Broken):
            post("/hooked")
        Order.objects.all().delete()
        with pytest.raises(Order.DoesNotExist):
            self.run(post, order)

    @pytest.mark.parametrize("verb", ["write", "fetch"])
    def test_a_call_cannot_become_another_step(self, post: Post, verb: str) -> None:
        """Another release has renamed things: the doubt is not forgotten."""
        with pytest.raises(Broken):
            self.run(post, lambda operation: operation.call("x", breaks, operation.derive_key("x")))
        with pytest.raises(IdempotencyConfigurationError, match="started as an external call"):
            self.run(post, lambda operation: getattr(operation, verb)("x", breaks))

    def test_a_step_knows_whether_its_key_was_asked_for(self, post: Post) -> None:
        """Before the call. So a person knows whether the called service can look the call up by its derived key."""
        self.run(post, lambda made: [*map(made.derive_key, ("a", "b")), *(made.call(name, str) for name in "abc")])
        assert dict(IdempotencyStep.objects.values_list("name", "keyed")) == {"a": True, "b": True, "c": False}


class TestFence:
    """A worker whose key was taken over, here by itself, cannot commit anything any more."""

    def taken_over(self, operation: Any = None) -> None:
        IdempotencyKey.objects.update(attempt=F("attempt") + 1)

    @pytest.mark.parametrize("gone", [False, True])
    def test_it_cannot_write(self, post: Post, gone: bool) -> None:
        """Its client gets the conflict: somebody else is at work, or has deleted the row by hand."""
        HOOKS["between"] = lambda operation: IdempotencyKey.objects.all().delete() if gone else self.taken_over()
        answer = post("/pay")
        assert (answer.status_code, answer.json()["code"], Order.objects.count()) == (409, "in-progress", 0)
        assert list(IdempotencyKey.objects.values_list("status", flat=True)) == ([] if gone else ["in_progress"])

    def test_a_lapsed_lease_alone_loses_nothing(self, post: Post) -> None:
        """Until somebody takes it over, its worker may finish, or take it anew."""

        def slow(operation: Any) -> None:
            lapse()
            operation.renew()
            assert row().locked_until > timezone.now() + timedelta(seconds=90)
            lapse()

        HOOKS["between"] = slow
        assert post("/pay").status_code == 201
        assert Order.objects.count() == 1


# --- the steps of a view that runs without a key


@pytest.mark.parametrize("step", ["acall", "afetch"])
def test_without_a_key_a_function_leaves_the_event_loop_as_well(step: str) -> None:
    """It may ask the database, or block. A function that returns an awaitable is awaited."""
    operation = Operation(None, journal=MemoryJournal("default", 60, "pay"))

    async def later() -> str:
        return "awaited"

    async def steps() -> tuple[Any, Any]:
        run: Any = getattr(operation, step)
        return await run("order", Order.objects.create, reference="unkeyed"), await run("later", lambda: later())

    order, awaited = async_to_sync(steps)()
    assert (Order.objects.get(), order.reference, awaited) == (order, "unkeyed", "awaited")


@pytest.mark.parametrize("step", ["acall", "afetch"])
def test_an_awaited_step_inside_another_one_is_refused(step: str) -> None:
    """As a step that isn't awaited. Afterwards, the outer step has ended."""
    operation = Operation(None, journal=MemoryJournal("default", 60, "pay"))

    async def inner() -> None:
        await operation.acall("inner", lambda: None)

    async def steps() -> Any:
        with pytest.raises(IdempotencyConfigurationError, match="'inner' was started inside the function of step 'out"):
            await getattr(operation, step)("outer", inner)
        return await operation.acall("after", lambda: "after")

    assert async_to_sync(steps)() == "after"


# --- names of steps are compared byte by byte on every database


PAIRS = (("charge", "Charge"), ("cafe", "café"), ("a", "a "))
calls: list[str] = []


def run(work: Callable[[Operation], Any], **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="pay", lease=60, **options).value


def steps(kind: str, *names: str) -> Callable[[Operation], Any]:
    """Work that runs a step under each of these names."""
    return lambda operation: [
        getattr(operation, kind)(name, lambda name=name: calls.append(name) or name) for name in names
    ]


@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_capitals_accents_and_spaces_make_another_step(kind: str, names: tuple[str, str]) -> None:
    """In one attempt, and in the retry, which gets each step's own result."""
    calls.clear()

    def dies(operation: Operation) -> None:
        steps(kind, *names)(operation)
        raise Broken

    with pytest.raises(Broken):
        run(dies)
    assert run(steps(kind, *names)) == list(names)
    assert calls == list(names)


def is_fetched_again(instance: Model) -> bool:
    """Whether a retry gets the row of a step whose attempt has written it, and then broken."""

    def dies(operation: Operation) -> None:
        operation.write("row", lambda: instance.save(force_insert=True) or instance)
        raise Broken

    with pytest.raises(Broken):
        run(dies)
    return run(lambda operation: operation.write("row", breaks) == type(instance)._base_manager.get())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *PARTS.items(),
        ("at", datetime(2026, 11, 26, 10, 0, 0, 999999, tzinfo=timezone.get_fixed_timezone(345))),
        ("at", "2026-11-26 10:00:00.123456+00:00"),
        ("day", date(1000, 12, 31)),
        ("day", datetime(2026, 11, 26, 10, tzinfo=UTC)),
        ("took", timedelta(days=400, microseconds=1)),
        ("took", timedelta(microseconds=-1)),
        ("price", Decimal("1234567890.0123456789")),
        ("price", Decimal("1E+3")),
        ("ratio", 0.1 + 0.2),
        ("uuid", "8e03978e40d543ddbc936894a57f9324"),
        ("name", "é\\"),
        ("number", 2**63 - 1),
    ],
)
def test_each_part_of_a_primary_key_is_kept_exactly(part: str, value: Any) -> None:
    """Microseconds, digits, types: the row is found after the charge, whatever its key consists of."""
    assert is_fetched_again(Keyed(**{**PARTS, part: value}))


@pytest.mark.parametrize("model", [File, Thumbnail])
def test_a_primary_key_of_bytes_is_kept_exactly(model: type[Model]) -> None:
    """Its own, or the one of the row to which it links."""
    digest = bytes.fromhex("00ff7f80")
    if model is Thumbnail:
        File.objects.create(digest=digest)
    assert is_fetched_again(model(digest) if model is File else model(file_id=digest))


def test_a_primary_key_of_an_older_version_is_read() -> None:
    """It was kept as Django's encoder writes each value: numbers, texts, and durations as ISO 8601 has them."""
    at, hour = PARTS["at"].replace(microsecond=123000), PARTS["hour"].replace(microsecond=123000)
    row = Keyed.objects.create(**{**PARTS, "at": at, "hour": hour})
    with pytest.raises(Broken):
        run(lambda operation: operation.write("row", lambda: 1) and breaks())
    kept = (
        '{"model": "shopapp.Keyed", "pk": ["2026-11-26T10:00:00.123Z", "2026-01-01", "23:59:59.123", '
        '"P1DT00H00M00.000001S", "1.0123456789", 0.5, "8e03978e-40d5-43dd-bc93-6894a57f9324", "12", 7], '
        '"using": "default"}'
    )
    assert IdempotencyStep.objects.update(result=kept) == 1
    assert run(lambda operation: operation.write("row", breaks) == row)
