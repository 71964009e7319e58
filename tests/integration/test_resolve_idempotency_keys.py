"""`manage.py resolve_idempotency_keys`: which keys, which decision, and its trail."""

from __future__ import annotations

import getpass
import io
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from django_idempotency.engine.execution.values import decode
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_leased
from tests.resolving import resolve
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db
WHY = "--reason=TICKET-1"


@pytest.fixture(autouse=True)
def _keys() -> None:
    make_leased("doubt", "failed", doubt=True)
    make_leased("half", "failed")
    make_leased("stuck", "in_progress", lapsed=True, call=False)
    make_leased("running", "in_progress", lapsed=False, doubt=True)
    make_leased("done", "completed")
    IdempotencyKey.objects.update(policy="retry")
    IdempotencyKey.objects.filter(key="doubt").update(
        policy="hold", operation="POST refund/", resource_type="order", resource_id="59"
    )
    IdempotencyKey.objects.filter(key="half").update(updated_at=timezone.now() - timedelta(days=7))
    IdempotencyKey.objects.filter(key="stuck").update(updated_at=timezone.now())


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("resolve_idempotency_keys", WHY, *args, stdout=out)
    return out.getvalue()


def refused(*args: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(*args)
    return caught.value


def listed(*args: str) -> list[str]:
    keys = {str(key.pk): key.key for key in IdempotencyKey.objects.all()}
    lines = resolve("--close=410", *args)[1].splitlines()
    return sorted(keys[line.split()[0]] for line in lines if ", policy " in line)


def get(key: str) -> IdempotencyKey:
    return IdempotencyKey.objects.get(key=key)


@pytest.mark.parametrize(
    ("selectors", "keys"),
    [
        (["--older-than=0"], ["doubt", "half", "stuck"]),
        (["--state=stuck"], ["stuck"]),
        (["--state=stuck", "--state=in-doubt"], ["doubt", "stuck"]),
        (["--state=half-done"], ["half"]),
        (["--operation=POST refund/"], ["doubt"]),
        (["--operation=POST refund/", "--state=stuck"], []),
        (["--resource=59"], ["doubt"]),
        (["--resource=order 59"], ["doubt"]),
        (["--resource=invoice 59"], []),
        (["--key=half", '--key="doubt"', "--key=done"], ["doubt", "half"]),
        (["--older-than=86400"], ["doubt", "half"]),
    ],
)
def test_which_keys(selectors: list[str], keys: list[str]) -> None:
    """Never a completed key, nor one with a worker."""
    assert listed(*selectors) == keys


def test_without_apply_nothing_changes() -> None:
    """The keys are listed, with what is in doubt and what they are about."""
    before = list(IdempotencyKey.objects.order_by("pk").values())
    assert run("--close=410", "--resource=59") == (
        f"{get('doubt').pk} {get('doubt').reference} POST refund/, caller 's': failed, policy hold, attempt 1, "
        "in doubt: call, about order 59.\n"
        "Retries get 410, text/plain; charset=utf-8, with an empty body.\n"
        "Close: 1. Nothing was changed: --apply is missing.\n"
    )
    assert list(IdempotencyKey.objects.order_by("pk").values()) == before


def test_release_takes_keys_that_may_be_retried() -> None:
    """Keys on hold are passed over, with exit status 3."""
    error = refused("--release", "--older-than=0", "--apply")
    assert error.returncode == 3
    assert (get("stuck").status, get("doubt").steps.filter(finished_at=None).count()) == ("failed", 1)
    assert decisions_of(get("doubt")) == []


def test_release_passes_over_a_write_in_doubt() -> None:
    """Also under "retry": that policy speaks of calls, and a repeated write is a second order."""
    get("half").steps.filter(name="write").update(finished_at=None, result=None)
    assert refused("--release", "--key=half", "--apply").returncode == 3
    assert get("half").steps.filter(finished_at=None).count() == 1
    assert run("--release", "--calls-did-not-happen", "--key=half", "--apply").endswith("Release: 1.\n")


def test_release_of_what_did_not_happen() -> None:
    """Also on hold, by a person who has looked; the trail keeps the call."""
    assert run("--release", "--calls-did-not-happen", "--key=doubt", "--apply", "--by=ann").endswith("Release: 1.\n")
    assert not get("doubt").steps.filter(finished_at=None).exists()
    (decision,) = decisions_of(get("doubt"))
    assert (decision.action, decision.by, decision.reason) == ("release", "ann", "TICKET-1")
    assert [step["name"] for step in decision.steps] == ["call"]


def test_record() -> None:
    """Only where the step is in doubt; `by` is the user of the operating system."""
    assert run("--record", 'call={"id": "ch_1"}', "--older-than=0", "--apply").endswith("Record: 1.\n")
    assert IdempotencyStep.objects.get(key__key="doubt", name="call").result == '{"value": {"id": "ch_1"}}'
    assert decisions_of(get("doubt"))[0].by == getpass.getuser()


def test_record_a_row() -> None:
    """Of a step that returns a model instance: what names the row, as the runbook and the admin show it."""
    order = Order.objects.create(reference="made")
    run("--record", f'call={{"model": "shopapp.Order", "pk": {order.pk}}}', "--key=doubt", "--apply")
    assert decode(IdempotencyStep.objects.get(key__key="doubt", name="call").result) == order


@pytest.mark.django_db(databases=["default", "other"])
def test_record_a_row_of_another_database() -> None:
    """The one that is named, not the row with this number where such rows are written."""
    order = Order.objects.using("other").create(reference="made")
    shown = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "other"}}'
    run("--record", f"call={shown}", "--key=doubt", "--apply")
    assert IdempotencyStep.objects.get(key__key="doubt", name="call").result == shown


def test_a_result_is_recorded_for_one_key_only() -> None:
    """The charge of one customer must not become the result of another customer's key."""
    make_leased("second", "failed", doubt=True)
    for apply in ([], ["--apply"]):
        assert "2 keys are selected" in str(refused("--record", 'call="ch_1"', "--older-than=0", *apply))
    assert [get(key).steps.filter(finished_at=None).count() for key in ("doubt", "second")] == [1, 1]
    assert run("--record", 'call="ch_1"', "--key=doubt", "--apply").endswith("Record: 1.\n")


def test_who_decides_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a number that has no name."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert "--by NAME" in str(refused("--close=410", "--key=half", "--apply"))
    assert get("half").status == "failed"


@pytest.mark.parametrize(
    ("body", "media_type"), [('{"refunded": true}', "application/json"), ("refunded", "text/plain; charset=utf-8")]
)
def test_close(body: str, media_type: str) -> None:
    """The list shows what retries will get."""
    arguments = ["--close=200", f"--body={body}", "--key=half"]
    for apply in ([], ["--apply"]):
        assert f"Retries get 200, {media_type}, with this body: {body}\n" in run(*arguments, *apply)
    key = get("half")
    assert (key.status, key.status_code, bytes(key.body or b"")) == ("completed", 200, body.encode())
    assert media_type in (key.headers or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--release"], "Choose the keys"),
        (["--record=call", "--key=k"], "write STEP=JSON"),
        (["--record=call=ch_1", "--key=k"], "is not JSON"),
        (["--record=call=[" + "[" * 100_000, "--key=k"], "is not JSON"),
        (["--record=call=NaN", "--key=k"], "is not JSON"),
        (['--record=call={"value": {"id": "ch_1"}}', "--key=k"], 'Enter only what stands inside "value"'),
        (['--record=call={"model": "shopapp.Order", "pk": 0}', "--key=k"], "no shopapp.Order with the primary key 0"),
        (['--record=call={"model": "shopapp.Order", "pk": {}}', "--key=k"], "no shopapp.Order with the primary key {}"),
        (["--close=200", '--body={"id": 1', "--key=k"], "is not JSON (Expecting ',' delimiter"),
        (["--close=200", "--body={'id': 1}", "--key=k"], "Check the quotes"),
        (["--close=200", "--body= [NaN]", "--key=k"], "NaN is not a JSON value"),
        (["--close=500", "--key=k"], "is no final answer"),
        (["--release", "--key=k", "--database=gone"], "There is no database 'gone'"),
        (["--release", "--key=k", "--apply", "--reason= "], "--reason is empty"),
        (["--key=k"], "one of the arguments --release --record --close is required"),
    ],
)
def test_what_cannot_work(arguments: list[str], message: str) -> None:
    """It is refused before a key is looked for."""
    assert message in str(refused(*arguments))


class WhileListing(io.StringIO):
    """A pipe to a person who reads for a while: what happens meanwhile, happens at the first line."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Any] | None = meanwhile

    def write(self, text: str) -> int:
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return super().write(text)


def test_a_key_that_has_changed_is_refused() -> None:
    """Between the list and the decision: exit status 3, and the others are decided about."""
    a_retry = WhileListing(lambda: IdempotencyKey.objects.filter(key="stuck").update(attempt=2))
    status, text = resolve("--close=410", "--older-than=0", "--apply", out=a_retry)
    assert (status, "Close: 2. Refused, because they had changed: 1.\n" in text) == (3, True)
    assert (get("half").status, get("stuck").status) == ("completed", "in_progress")


@pytest.mark.parametrize(
    "decision", [["--close=410"], ["--release", "--calls-did-not-happen"], ["--record", 'call="of Ann"']]
)
def test_a_key_that_fails_meanwhile_is_not_decided_about(decision: list[str]) -> None:
    """Its call may have been made, and the result of another customer's call is not its own."""
    another = WhileListing(lambda: make_leased("another", "failed", doubt=True))
    listed = ["--state=in-doubt", "--operation=POST refund/", "--operation=POST pay/"]
    status, text = resolve(*decision, *listed, "--apply", out=another)
    assert (status, len(re.findall(": 1[.]$", text))) == (0, 1)
    assert (get("another").decisions, get("another").steps.filter(finished_at=None).count()) == (None, 1)
    assert get("doubt").decisions is not None


def test_a_result_that_is_too_long_is_refused() -> None:
    """As a step's own would be, and before a key is listed."""
    text = f'call="{"x" * 1024**2}"'
    for apply in ([], ["--apply"]):
        status, printed = resolve("--record", text, "--older-than=0", *apply)
        assert (status, printed.startswith("the result of a step takes 10485"), printed.count("in doubt")) == (
            1,
            True,
            0,
        )


@pytest.mark.django_db(databases=["default", "other"])
@override_settings(DATABASE_ROUTERS=["tests.routers.ReadsFromOther"])
def test_keys_and_steps_are_read_where_they_are_written() -> None:
    """A replica may lag behind: it does not know yet that the call was started."""
    status, text = resolve("--close=410", "--resource=59", "--database=default")
    assert (status, "in doubt: call, about order 59" in text) == (0, True)
    assert resolve(f"--id={text.split()[0]}", "--close=410", "--database=default")[0] == 0


def test_the_steps_of_all_keys_are_read_at_once() -> None:
    """However many keys there are."""
    with CaptureQueriesContext(connection) as queries:
        run("--close=410", "--older-than=0")
    assert sum("idempotencystep" in query["sql"].partition("WHERE")[0] for query in queries) == 1
