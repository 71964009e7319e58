"""`IDEMPOTENCY["USING"]`: where the keys are written, everything looks for them, unless it is given an alias."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_idempotency.engine.conf import Idempotency, resolve
from django_idempotency.engine.stores import alias_for, alias_of
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
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.expired import make_keys, make_leased

ROUTER = {"DATABASE_ROUTERS": ["tests.routers.OtherIsWritten"]}


@pytest.mark.parametrize(
    ("settings", "given", "alias"),
    [
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


def test_a_view_may_leave_the_choice_to_the_routers() -> None:
    """Its own `using=None` is nearer than the setting."""
    with override_settings(IDEMPOTENCY={"USING": "other"}):
        assert (alias_of(resolve(Idempotency(using=None))), alias_of(resolve())) == ("default", "other")


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

    def test_keys_made_for_a_test(self) -> None:
        create_key(key="k")
        assert find_key("k").get()._state.db == "other"

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (["cleanup_idempotency_keys", "--fail-on-stuck"], 3),
            (["recover_idempotency_keys", "--older-than=0"], 3),
            (["resolve_idempotency_keys", "--key=doubt", "--close=410", "--by=ann", "--reason=T-1", "--apply"], 0),
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

    def test_metrics(self) -> None:
        pytest.importorskip("prometheus_client")
        from django_idempotency.metrics import KeyCollector

        make_leased("doubt", "failed", doubt=True, using="other")
        gauges = {gauge.name: gauge.samples for gauge in KeyCollector().collect()}
        (sample,) = gauges["idempotency_keys_in_doubt"]
        assert (sample.labels, sample.value) == ({"database": "other"}, 1)
