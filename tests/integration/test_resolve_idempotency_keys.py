"""`manage.py resolve_idempotency_keys`: which keys, which decision, what it prints, and its exit status."""

from __future__ import annotations

import getpass
import io
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.test.utils import override_settings
from django.utils import timezone

from django_idempotency.engine.execution.values import decode
from django_idempotency.engine.stores.sealing import MARK
from django_idempotency.maintenance import record_outcome
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.expired import make_leased
from tests.resolving import get, listed, resolve, rows
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("keys_of_each_kind")]
SETTLED = "--finished-calls-are-settled"
DECISIONS = (["--close=410", SETTLED], ["--release", "--calls-did-not-happen"], ["--record", 'call="ch_1"'])


class TestList:
    """Without a decision, the keys are listed."""

    @pytest.mark.parametrize(
        ("selectors", "keys"),
        [
            ([], ["doubt", "half", "stuck"]),
            (["--state=stuck"], ["stuck"]),
            (["--state=stuck", "--state=in-doubt"], ["doubt", "stuck"]),
            (["--state=half-done"], ["half"]),
            (["--operation=POST refund/"], ["doubt"]),
            (["--resource=59"], ["doubt"]),
            (["--resource=order 59"], ["doubt"]),
            (["--key=half", '--key="doubt"', "--key=done"], ["doubt", "half"]),
            (["--older-than=86400"], ["doubt", "half"]),
        ],
    )
    @pytest.mark.parametrize("decision", [[], ["--close=410"]])
    def test_which_keys(self, selectors: list[str], keys: list[str], decision: list[str]) -> None:
        """Never a completed key, nor one with a worker. A decision is about the same keys, and needs an option."""
        before = rows()
        if selectors or not decision:
            assert listed(*selectors, *decision) == keys
        assert rows() == before

    def test_a_line_says_what_a_person_has_to_know(self) -> None:
        """State, age, worker, what is in doubt, and what has ended with which result."""
        IdempotencyStep.objects.filter(name="write").update(result='{"value": "\x1b[31m' + "x" * 300 + '"}')
        key, done = get("doubt"), 'write={"value": "\\x1b[31m' + "x" * 184
        assert resolve("--resource=59") == (
            0,
            f"{key.pk} {key.reference} POST refund/, caller 's': in doubt for 2\xa0days, policy hold, attempt 1, "
            f"worker w:7, in doubt: call, done: {done}, about order 59.\n"
            "1 key. Decide by --release, --record or --close.\n",
        )

    def test_a_result_that_cannot_be_decrypted_says_so(self) -> None:
        IdempotencyStep.objects.filter(name="write").update(result=f"{MARK}x")
        assert "done: write=(cannot be decrypted)" in resolve("--resource=59")[1]

    @pytest.mark.parametrize("decision", [[], ["--close=410"], ["--close=410", "--apply"], ["--record=call=1"]])
    @pytest.mark.parametrize("selectors", [["--operation=POST gone/"], ["--key=gone"], ["--id=0"], ["--key=done"]])
    def test_selecting_nothing_is_one_kind_of_error(self, decision: list[str], selectors: list[str]) -> None:
        status, text = resolve(*selectors, *decision)
        assert (status, text.endswith("No key is selected.")) == (3, True)

    def test_that_no_key_needs_attention_is_no_error(self) -> None:
        IdempotencyKey.objects.all().delete()
        assert resolve() == (0, "0 keys.\n")

    @pytest.mark.django_db(databases=["default", "other"])
    @override_settings(DATABASE_ROUTERS=["tests.routers.ReadsFromOther"])
    def test_keys_and_steps_are_read_where_they_are_written(self) -> None:
        """A replica may lag behind: it does not know yet that the call was started."""
        status, text = resolve("--resource=59", "--database=default")
        assert (status, "in doubt: call, " in text) == (0, True)
        assert resolve(f"--id={text.split()[0]}", "--close=410", "--database=default")[0] == 0


class TestDecisions:
    @pytest.mark.parametrize(
        ("decision", "would", "done"),
        [
            ("--close=410", "Would close 1 key. Add --apply to do it.\n", "Closed 1 key.\n"),
            ("--release", "Would release 1 key. Add --apply to do it.\n", "Released 1 key.\n"),
        ],
    )
    def test_nothing_changes_without_apply(self, decision: str, would: str, done: str) -> None:
        before = rows()
        status, text = resolve(decision, "--key=stuck")
        assert (status, text.endswith(would), rows() == before) == (0, True, True)
        status, text = resolve(decision, "--key=stuck", "--apply", "--by=ann")
        assert (status, text.endswith(done)) == (0, True)
        (made,) = decisions_of(get("stuck"))
        assert (made.by, made.reason) == ("ann", "TICKET-1")

    @pytest.mark.parametrize("what", ["hold", "a write in doubt"])
    def test_a_release_passes_over_what_needs_a_look(self, what: str) -> None:
        """Also under "retry": that policy speaks of calls, and a repeated write is a second order."""
        key = "doubt" if what == "hold" else "half"
        if what != "hold":
            get("half").steps.filter(name="write").update(finished_at=None, result=None)
        for apply in ([], ["--apply"]):
            status, text = resolve("--release", f"--key={key}", *apply)
            assert (status, ". Passed over.\n" in text) == (3, True)
            assert "0 keys" in text
            assert "Passed over: 1. Look outside first, then add --calls-did-not-happen.\n" in text
        assert get(key).decisions is None
        assert resolve("--release", "--calls-did-not-happen", f"--key={key}", "--apply")[0] == 0
        assert not get(key).steps.filter(finished_at=None).exists()

    def test_closing_passes_over_finished_calls(self) -> None:
        """One charge without an order would be forgotten: it is asked what came of it."""
        status, text = resolve("--close=410", "--older-than=0", "--apply")
        assert (status, "Closed 2 keys. Passed over: 1. Look outside first, then add " + SETTLED in text) == (3, True)
        assert [get(key).status for key in ("doubt", "half", "stuck")] == ["completed", "failed", "completed"]
        assert resolve("--close=410", SETTLED, "--key=half", "--apply")[0] == 0
        assert get("half").status == "completed"

    def test_record(self) -> None:
        """Only where the step is in doubt; `by` is the user of the operating system."""
        status, text = resolve("--record", 'call={"id": "ch_1"}', "--older-than=0", "--apply")
        assert (status, text.splitlines()[-1]) == (0, "Recorded a result for 1 key.")
        assert IdempotencyStep.objects.get(key__key="doubt", name="call").result == '{"value": {"id": "ch_1"}}'
        assert decisions_of(get("doubt"))[0].by == getpass.getuser()

    @pytest.mark.django_db(databases=["default", "other"])
    @pytest.mark.parametrize("using", ["default", "other"])
    def test_record_a_row(self, using: str) -> None:
        """Of a step that returns a model instance: what names the row, in the database that is named."""
        order = Order.objects.using(using).create(reference="made")
        shown = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "{using}"}}'
        given = shown if using == "other" else shown.replace(', "using": "default"', "")
        resolve("--record", f"call={given}", "--key=doubt", "--apply")
        result = IdempotencyStep.objects.get(key__key="doubt", name="call").result
        assert (result, decode(result)) == (shown, order)

    def test_a_result_is_recorded_for_one_key_only(self) -> None:
        """The charge of one customer must not become the result of another customer's key."""
        make_leased("second", "failed", doubt=True)
        for apply in ([], ["--apply"]):
            assert "2 keys are selected" in resolve("--record", 'call="ch_1"', "--older-than=0", *apply)[1]
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 0

    @pytest.mark.parametrize(
        ("body", "media_type"), [('{"refunded": true}', "application/json"), ("refunded", "text/plain; charset=utf-8")]
    )
    def test_close(self, body: str, media_type: str) -> None:
        """The list shows what retries will get."""
        arguments = ["--close=200", f"--body={body}", "--key=stuck"]
        for apply in ([], ["--apply"]):
            assert f"Retries get 200, {media_type}, with this body: {body}\n" in resolve(*arguments, *apply)[1]
        key = get("stuck")
        assert (key.status, key.status_code, bytes(key.body or b"")) == ("completed", 200, body.encode())
        assert media_type in (key.headers or "")
        assert "nosniff" in (key.headers or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--release"], "Choose the keys"),
        (["--apply"], "say what to decide"),
        (["--record=call", "--key=k"], "write STEP=JSON"),
        (["--record=call=ch_1", "--key=k"], "not JSON"),
        (["--record=call=[" + "[" * 100_000, "--key=k"], "not JSON"),
        (["--record=call=NaN", "--key=k"], "not JSON"),
        (['--record=call={"value": {"id": "ch_1"}}', "--key=k"], "Enter only what stands inside"),
        (['--record=call={"model": "shopapp.Order", "pk": 0}', "--key=k"], "no shopapp.Order with the primary key 0"),
        (['--record=call={"model": "shopapp.Order", "pk": {}}', "--key=k"], "no shopapp.Order with the primary key {}"),
        (['--record=call="' + "x" * 1024**2 + '"', "--key=k"], "the result of a step takes 10485"),
        (["--close=200", '--body={"id": 1', "--key=k"], "not JSON: Expecting ',' delimiter"),
        (["--close=200", "--body={'id': 1}", "--key=k"], "not JSON"),
        (["--close=200", "--body= [NaN]", "--key=k"], "NaN is not a JSON value"),
        (["--close=500", "--key=k"], "is no final answer"),
        (["--release", "--key=k", "--database=gone"], "There is no database 'gone'"),
        (["--release", "--key=k", "--apply", "--reason= "], "--reason is missing"),
    ],
)
def test_what_cannot_work_is_refused_before_a_key_is_looked_for(arguments: list[str], message: str) -> None:
    status, text = resolve(*arguments)
    assert (status, message in text, ", policy " in text) == (1, True, False)


def test_who_decides_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a number that has no name."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert "--by NAME" in resolve("--close=410", "--key=stuck", "--apply")[1]
    assert get("stuck").status == "in_progress"


def test_what_a_database_quotes_of_a_row_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise DatabaseError("duplicate key\nDETAIL:  Key (key)=(very-secret) already exists.")

    monkeypatch.setattr("django_idempotency.management.commands.resolve_idempotency_keys.resolve_all", fails)
    status, text = resolve("--close=410", "--key=stuck", "--apply")
    assert (status, "duplicate key" in text, "very-secret" in text) == (1, True, False)


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


class TestMeanwhile:
    """What happens between the list and the decision."""

    @pytest.mark.parametrize("change", [{"attempt": 2}, {"updated_at": datetime(2026, 1, 1, tzinfo=UTC)}])
    def test_a_key_that_has_changed_is_refused(self, change: dict[str, Any]) -> None:
        """By a retry or by another decision: exit status 3, and the others are decided about."""
        a_change = WhileListing(lambda: IdempotencyKey.objects.filter(key="stuck").update(**change))
        status, text = resolve("--close=410", SETTLED, "--older-than=0", "--apply", out=a_change)
        assert (status, "Closed 2 keys. Refused, because they had changed: 1.\n" in text) == (3, True)
        assert (get("half").status, get("stuck").status) == ("completed", "in_progress")

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_a_key_that_fails_meanwhile_is_not_decided_about(self, decision: list[str]) -> None:
        """Its call may have been made, and the result of another customer's call is not its own."""
        another = WhileListing(lambda: make_leased("another", "failed", doubt=True))
        status, text = resolve(*decision, "--state=in-doubt", "--operation=POST refund/", "--apply", out=another)
        assert (status, " 1 key." in text.splitlines()[-1]) == (0, True)
        assert (get("another").decisions, get("another").steps.filter(finished_at=None).count()) == (None, 1)
        assert get("doubt").decisions is not None


class TestOneKeyOfTwoCallers:
    """A client that knows the key of another one can use it too, and let its own call fail."""

    @pytest.fixture(autouse=True)
    def _two(self) -> None:
        self.victim = create_key("order-4711", scope="user:victim", in_doubt=["charge"])
        self.other = create_key("order-4711", scope="user:mallory", in_doubt=["charge"])

    def closed(self) -> list[str]:
        keys = IdempotencyKey.objects.filter(key="order-4711", status="completed").order_by("pk")
        return list(keys.values_list("scope", flat=True))

    @pytest.mark.parametrize("decision", [["--close=201"], ["--release"], ["--record=charge=1"]])
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_the_key_alone_is_refused(self, decision: list[str], apply: list[str]) -> None:
        """Also its reference, and if one of them would be passed over. Both are listed with their callers."""
        IdempotencyKey.objects.filter(pk=self.victim.pk).update(policy="hold")
        for key in ("order-4711", self.victim.reference):
            status, text = resolve(f"--key={key}", *decision, *apply)
            assert (status, text.count("caller 'user:")) == (1, 2)
            assert text.endswith(
                f"--key {key!r} selects 2 keys, of several callers or operations. Choose by the number at the "
                f"beginning of the line, such as --id {self.victim.pk}."
            )
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 0
        assert listed("--key=order-4711") == ["order-4711"] * 2

    @pytest.mark.parametrize("named", [[], ["--key=order-4711"]])
    def test_the_number_chooses_one(self, named: list[str]) -> None:
        assert resolve(f"--id={self.victim.pk}", *named, "--close=201", "--apply")[0] == 0
        assert self.closed() == ["user:victim"]
        assert resolve(f"--id={self.victim.pk}", f"--id={self.other.pk}", "--close=410", "--apply")[0] == 3
        assert self.closed() == ["user:victim", "user:mallory"]


class TestWhyNot:
    """Each name that selects nothing has a line that says why, and the exit status is 3."""

    @pytest.mark.parametrize(
        ("key", "options", "why"),
        [
            ("done", ["--close=410"], "it is completed."),
            ("running", [], "a worker holds its lease until 2099-01-02 03:04:05+00:00."),
            ("running", ["--record=call=1"], "a worker holds its lease until 2099-01-02 03:04:05+00:00."),
            ("doubt", ["--record=chrage=1"], "it has no step 'chrage' in doubt. In doubt: call."),
            ("doubt", ["--record=write=1"], "it has no step 'write' in doubt. In doubt: call."),
            ("half", ["--record=call=1"], "it has no step 'call' in doubt. In doubt: none."),
            ("doubt", ["--close=410", "--operation=POST gone/"], "the other options exclude it."),
            ("doubt", ["--record=call=1", "--state=stuck"], "the other options exclude it."),
        ],
    )
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_there(self, key: str, options: list[str], why: str, apply: list[str]) -> None:
        row, before = get(key), rows()
        for name, option in ((f"--key={key}", f"--key {key!r}"), (f"--id={row.pk}", f"--id {row.pk}")):
            status, text = resolve(name, *options, *(apply if options else []))
            assert (status, text.splitlines()[0]) == (3, f"{option} selects nothing. {row.pk} {row}: {why}")
        assert rows() == before

    def test_a_key_that_is_not_there(self) -> None:
        """A misspelt one; and one among several, of which the others are decided about."""
        assert resolve("--key=dubt")[1].startswith("--key 'dubt' selects nothing. There is no such key.\n")
        assert resolve(f"--id={10**30}")[1].startswith(f"--id {10**30} selects nothing. There is no such key.\n")
        other = create_key("done", scope="user:1", operation="POST pay/")
        status, text = resolve("--key=stuck", "--key=done", "--close=410", "--apply")
        assert (status, text.splitlines()[-2]) == (3, "Closed 1 key.")
        assert text.count("--key 'done' selects nothing.") == 2
        assert f"{other.pk} {other}: it is completed." in text
        assert get("stuck").status == "completed"

    def test_a_key_without_attention_may_be_named(self) -> None:
        """As on its page in the admin: one that has failed, or whose view has ended its own transaction."""
        make_leased("plain", "failed", call=False)
        make_leased("open", "in_progress", call=False)
        assert listed() == ["doubt", "half", "open", "stuck"]
        IdempotencyKey.objects.filter(key="open").update(expires_at=timezone.now() + timedelta(days=1))
        assert listed() == ["doubt", "half", "stuck"]
        assert resolve("--key=plain", "--key=open", "--close=410", "--apply")[0] == 0
        assert (get("plain").status, get("open").status) == ("completed", "completed")


class TestCorrection:
    """A result that a person has recorded can be corrected until the key is completed, as in the admin."""

    @pytest.fixture(autouse=True)
    def _recorded(self) -> None:
        self.row = create_key("recorded", in_doubt=["charge"], steps={"fee": 1})
        record_outcome(self.row.pk, "charge", {"id": "ch_1"}, attempt=1, by="ann", reason="T")

    def results(self) -> list[str | None]:
        return list(self.row.steps.order_by("name").values_list("result", flat=True))

    def test_a_named_key(self) -> None:
        for name, number in ((f"--id={self.row.pk}", 2), ("--key=recorded", 3)):
            status, text = resolve(name, f'--record=charge={{"id": "ch_{number}"}}', "--apply")
            assert (status, text.splitlines()[-1]) == (0, "Recorded a result for 1 key.")
            assert f'charge={{"value": {{"id": "ch_{number - 1}"}}}}' in text
            assert self.results() == [f'{{"value": {{"id": "ch_{number}"}}}}', '{"value": 1}']

    @pytest.mark.parametrize(
        ("changed", "selected", "step"),
        [
            ({}, "--operation=POST orders/", "charge"),  # a script that runs twice must not replace what was found out
            ({}, "--key=recorded", "fee"),
            ({"status": "completed"}, "--key=recorded", "charge"),
            ({"status": "in_progress", "locked_until": datetime(2099, 1, 1, tzinfo=UTC)}, "--key=recorded", "charge"),
            ({"decisions": f"{MARK}x"}, "--key=recorded", "charge"),
            ({"decisions": "{"}, "--key=recorded", "charge"),
        ],
    )
    def test_nothing_else(self, changed: dict[str, object], selected: str, step: str) -> None:
        """Not without a name, not the result of a call, not of a key that is completed or at work, not with a trail
        that cannot be read."""
        IdempotencyKey.objects.filter(pk=self.row.pk).update(**changed)
        assert resolve(selected, f"--record={step}=1", "--apply")[0] == 3
        assert self.results() == ['{"value": {"id": "ch_1"}}', '{"value": 1}']

    def test_a_trail_that_cannot_be_read_gets_no_decision(self) -> None:
        """The decision would be added to it. The error says what is missing."""
        IdempotencyKey.objects.filter(pk=self.row.pk).update(decisions=f"{MARK}x")
        status, text = resolve("--key=recorded", "--close=200", SETTLED, "--apply")
        assert (status, "ENCRYPTION_KEYS" in text, get("recorded").status) == (1, True, "failed")
