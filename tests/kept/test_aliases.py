"""Everything about a key happens on the alias that `using` names, and nothing of it elsewhere."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import ResolverMatch
from django.utils import timezone

from django_idempotency import Operation, OutcomeUnknown, get_operation, idempotent, run_once
from django_idempotency.engine.stores import alias_for
from django_idempotency.maintenance import (
    Forgotten,
    cleanup_idempotency_keys,
    find_key,
    find_resource,
    forget,
    forget_scope,
    half_done,
    in_doubt,
    in_flight,
    needs_attention,
    recover_idempotency_keys,
    release_for_retry,
    stuck,
)
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_keys, make_leased
from tests.heard import heard
from tests.shopapp.models import Order
from tests.views import creates

pytestmark = pytest.mark.django_db(databases=["default", "other"])
HELD: dict[str, Any] = {
    "scope": "s",
    "key": "k",
    "operation": "pay",
    "using": "other",
    "lease": 60,
    "on_abandoned": "hold",
}


DECIDED = ["--key=doubt", "--release", "--calls-did-not-happen", "--by=ann", "--reason=T-1", "--apply"]


def depths() -> tuple[int, int]:
    """How many transactions are open on each alias, the test's own included."""
    return len(connections["default"].atomic_blocks), len(connections["other"].atomic_blocks)


def charge(operation: Operation) -> Any:
    return operation.call("charge", fails)


def fails() -> Any:
    raise OSError("the gateway hung up")


@pytest.fixture
def doubt() -> IdempotencyKey:
    with pytest.raises(OSError, match="hung up"):
        run_once(charge, **HELD)
    with pytest.raises(OutcomeUnknown):
        run_once(charge, **HELD)
    assert not IdempotencyKey.objects.using("default").exists()
    return IdempotencyKey.objects.using("other").get()


def test_a_person_releases(doubt: IdempotencyKey) -> None:
    """The trail keeps the call that was in doubt."""
    release_for_retry(doubt)
    doubt.refresh_from_db()
    (made,) = decisions_of(doubt)
    assert [step["name"] for step in made.steps] == ["charge"]
    assert run_once(lambda operation: operation.attempt, **HELD).value == 2


def test_an_atomic_run_is_refused_after_the_steps_of_its_alias() -> None:
    """It would run them again."""

    def charges_and_fails(operation: Operation) -> None:
        operation.call("charge", depths)
        fails()

    with pytest.raises(OSError, match="hung up"):
        run_once(charges_and_fails, **HELD)
    with pytest.raises(OutcomeUnknown):
        run_once(depths, scope="s", key="k", operation="pay", using="other")


def test_an_expired_key_is_taken_over_without_its_steps() -> None:
    """Of its alias, too: the new request makes a new call."""
    calls: list[int] = []
    for _ in range(2):
        run_once(lambda operation: operation.call("charge", calls.append, 1), **HELD)
        IdempotencyKey.objects.using("other").update(expires_at=timezone.now() - timedelta(days=2))
    assert calls == [1, 1]


def test_the_work_runs_in_a_transaction_of_its_alias() -> None:
    """Of that one only."""
    before = depths()
    assert run_once(depths, scope="s", key="k", using="other").value == [before[0], before[1] + 1]


def test_what_only_passes_through_runs_in_djangos_transaction_of_its_alias(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATOMIC_REQUESTS is about each database by itself."""
    monkeypatch.setitem(connections["other"].settings_dict, "ATOMIC_REQUESTS", True)
    request = rf.get("/")
    view = idempotent(using="other")(lambda request: HttpResponse(str(depths())))
    request.resolver_match = ResolverMatch(view, (), {})
    before = depths()
    assert view(request).content.decode() == str((before[0], before[1] + 1))


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_retry_of_a_leased_key_claims_in_a_transaction_of_its_alias() -> None:
    """Without it, two retries at once could both lock the row, one after the other, and run."""
    options: dict[str, Any] = {**HELD, "on_abandoned": "retry"}
    with pytest.raises(OSError, match="hung up"):
        run_once(charge, **options)
    seen: set[tuple[int, int]] = set()

    def look(execute: Any, *args: Any) -> Any:
        seen.add(depths())
        return execute(*args)

    with connections["other"].execute_wrapper(look):
        assert run_once(lambda operation: operation.attempt, **options).value == 2
    assert seen == {(0, 0), (0, 1)}


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_call_begins_in_a_transaction_of_its_alias() -> None:
    """InnoDB locks the key before it adds the step. A takeover cannot come between the two."""
    seen: list[tuple[int, int]] = []

    def look(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("INSERT") and IdempotencyStep._meta.db_table in sql:
            seen.append(depths())
        return execute(sql, *args)

    with connections["other"].execute_wrapper(look), pytest.raises(OSError, match="hung up"):
        run_once(charge, **HELD)
    ((of_default, of_other),) = seen
    assert of_default == 0
    assert of_other > 0


def test_a_server_error_rolls_its_alias_back() -> None:
    """What the view has written there, and the claim."""

    busy = idempotent(using="other")(creates(503, using="other"))
    assert busy(RequestFactory().post("/", headers={"Idempotency-Key": "k"})).status_code == 503
    assert not Order.objects.using("other").exists()
    assert not IdempotencyKey.objects.using("other").exists()


def test_a_replay_rolls_back_nothing_elsewhere() -> None:
    """Its own savepoint alone."""
    with transaction.atomic():
        Order.objects.create(reference="kept")
        answers = [run_once(lambda: 1, scope="s", key="k", operation="o", using="other") for _ in range(2)]
    assert ([answer.replayed for answer in answers], Order.objects.get().reference) == ([False, True], "kept")


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_an_event_waits_for_the_commit_of_its_alias() -> None:
    """And is not told if that one is rolled back."""
    with heard("completed") as told:
        for key, rolls_back in (("kept", False), ("rolled-back", True)):
            with transaction.atomic(using="other"):
                run_once(depths, scope="s", key=key, using="other")
                assert key not in [event["identity"].key for event in told]
                transaction.set_rollback(rolls_back, using="other")
    assert [event["identity"].key for event in told] == ["kept"]


# --- `IDEMPOTENCY["USING"]`


ROUTER = {"DATABASE_ROUTERS": ["tests.routers.OtherIsWritten"]}


@pytest.mark.parametrize(
    ("settings", "given", "alias"),
    [
        ({"DATABASE_ROUTERS": ["tests.routers.OrdersAreOnOther"]}, None, "default"),
        ({}, None, "default"),
        ({"IDEMPOTENCY": {"USING": "other"}}, None, "other"),
        ({"IDEMPOTENCY": {"USING": "other"}}, "default", "default"),
        (ROUTER, None, "other"),
        ({**ROUTER, "IDEMPOTENCY": {"USING": "default"}}, None, "default"),
        ({**ROUTER, "IDEMPOTENCY": {"USING": None}}, None, "other"),
    ],
)
def test_the_nearest_one_decides(settings: dict[str, Any], given: str | None, alias: str) -> None:
    """The given alias, then the setting, then the routers."""
    with override_settings(**settings):
        assert alias_for(given) == alias


@pytest.fixture
def _other() -> Any:
    with override_settings(IDEMPOTENCY={"USING": "other"}):
        yield


@pytest.mark.usefixtures("_other")
@pytest.mark.django_db(databases=["default", "other"])
class TestLookingForKeys:
    """All of it is on `other`, and nothing on `default`."""

    def test_lookups(self) -> None:
        make_leased("doubt", "failed", doubt=True, using="other")
        make_leased("done", "failed", using="other")
        make_leased("stuck", "in_progress", lapsed=True, call=False, using="other")
        make_leased("running", "in_progress", lapsed=False, using="other")
        IdempotencyKey.objects.using("other").filter(key="done").update(resource_type="order", resource_id="59")
        looked = {
            look: sorted(look().values_list("key", flat=True))
            for look in (in_doubt, half_done, stuck, in_flight, needs_attention)
        }
        assert looked == {
            in_doubt: ["doubt"],
            half_done: ["done"],
            stuck: ["stuck"],
            in_flight: ["running"],
            needs_attention: ["done", "doubt", "stuck"],
        }
        assert [found.get().key for found in (find_key("doubt"), find_resource("order 59"))] == ["doubt", "done"]
        elsewhere = [look(using="default") for look in looked]
        elsewhere += [find_key("doubt", using="default"), find_resource("59", using="default")]
        assert [found.count() for found in elsewhere] == [0] * 7

    def test_forgetting(self) -> None:
        """An erasure that erases nothing would be worse than an error."""
        make_leased("k", "completed", using="other")
        make_leased("k2", "completed", using="other")
        assert forget("s", "k") == Forgotten(deleted=1, kept=0)
        assert forget_scope("s") == Forgotten(deleted=1, kept=0)

    def test_cleanup_and_recovery(self) -> None:
        make_keys(2, using="other")
        make_leased("doubt", "failed", doubt=True, using="other")
        cleaned = cleanup_idempotency_keys()
        assert (cleaned.deleted, cleaned.in_doubt) == (2, 1)
        assert recover_idempotency_keys(older_than=0).left == 1

    def test_decisions(self) -> None:
        make_leased("doubt", "failed", doubt=True, using="other")
        release_for_retry(in_doubt().get())
        assert not in_doubt().exists()

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (["cleanup_idempotency_keys", "--fail-on-stuck"], 3),
            (["recover_idempotency_keys", "--older-than=0"], 3),
            (["resolve_idempotency_keys", *DECIDED], 0),
        ],
    )
    def test_commands(self, arguments: list[str], status: int) -> None:
        make_leased("doubt", "failed", doubt=True, using="other")
        returned = 0
        try:
            call_command(*arguments, stdout=io.StringIO())
        except CommandError as error:
            returned = error.returncode
        assert (returned, in_doubt().exists()) == (status, status == 3)


def test_a_leased_view_without_a_key() -> None:
    before = depths()
    seen: list[Any] = []

    @idempotent(lease=60, using="other", required=False)
    def looks(request: HttpRequest) -> HttpResponse:
        operation = get_operation(request)
        seen.append(operation.write("look", lambda *, extra: (depths(), extra), extra="kept"))
        seen.append(operation.call("ask", lambda *, extra: extra, extra="kept"))
        return HttpResponse()

    looks(RequestFactory().post("/"))
    assert seen == [[[before[0], before[1] + 1], "kept"], "kept"]


@pytest.mark.parametrize("leased", [False, True])
def test_work_without_protection(leased: bool) -> None:
    """Switched off, the transactions stay where they were."""
    before = depths()

    def work(operation: Operation | None = None) -> Any:
        return depths() if operation is None else (operation.attempt, operation.write("look", depths))

    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        options: dict[str, Any] = {"using": "other", "operation": "look", **({"lease": 60} if leased else {})}
        result = run_once(work, scope="s", key="k", **options)
    expected: Any = [before[0], before[1] + 1]
    assert (result.value, result.replayed) == ([1, expected] if leased else expected, False)
