"""`manage.py resolve_idempotency_keys`: which keys, which decision, what it prints, and its exit status."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test.utils import override_settings
from django.utils import timezone

from django_idempotency.keys import derived_key
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.expired import make_leased
from tests.resolving import get, listed, resolve, rows

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("keys_of_each_kind")]
DECIDE = "Decide with --release or --close; to record the result of a call, use --from-csv or the admin."
SETTLED = "--finished-calls-are-settled"
DECISIONS = (["--close=410", SETTLED], ["--release", "--calls-did-not-happen"])


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
            (['--key="doubt"'], ["doubt"]),
            (["--key=done"], ["done"]),
            (["--key=running"], ["running"]),
            (["--older-than=86400"], ["doubt", "half"]),
        ],
    )
    @pytest.mark.parametrize("decision", [[], ["--close=410"]])
    def test_which_keys(self, selectors: list[str], keys: list[str], decision: list[str]) -> None:
        """A completed key, or one with a worker, only if it is named. A decision is about the same keys, and needs an
        option."""
        before = rows()
        if selectors or not decision:
            assert listed(*selectors, *decision) == keys
        assert rows() == before

    def test_what_is_in_doubt_comes_first(self) -> None:
        """Before older keys that are half done."""
        make_leased("late doubt", "failed", doubt=True)
        first = [line.partition(" ")[0] for line in resolve()[1].splitlines()[:2]]
        assert first == [str(get(key).pk) for key in ("doubt", "late doubt")]

    def test_a_line_says_what_a_person_has_to_know(self) -> None:
        """State, age, worker, what is in doubt, and what has ended with which result."""
        IdempotencyStep.objects.filter(name="write").update(result='{"value": "\x1b[31m' + "x" * 300 + '"}')
        key, done = get("doubt"), 'write={"value": "\\x1b[31m' + "x" * 184
        assert resolve("--operation=POST refund/") == (
            0,
            f"{key.pk} {key.reference} POST refund/, caller 's': in doubt for 2\xa0days, policy hold, attempt 1, "
            f"worker w:7, in doubt: call, done: {done}, about order 59.\n"
            f"1 key. {DECIDE}\n",
        )

    @pytest.mark.parametrize("keyed", [True, False])
    def test_a_line_names_the_derived_key_that_the_gateway_may_know(self, keyed: bool) -> None:
        """Not one that no call has carried: a person would look for it in vain, and release the key."""
        IdempotencyStep.objects.filter(name="call", finished_at=None).update(keyed=keyed)
        derived = derived_key(scope="s", operation="POST refund/", key="doubt", step="call")
        known = f"in doubt: call (derived key {derived})," if keyed else "in doubt: call,"
        assert known in resolve("--operation=POST refund/")[1]

    def test_a_key_whose_view_ended_its_transaction_says_what_is_in_doubt(self) -> None:
        """Its claim is committed, and no worker has a lease."""
        IdempotencyKey.objects.filter(key="stuck").update(
            status="in_progress", locked_until=None, expires_at=timezone.now()
        )
        status, text = resolve(f"--id={get('stuck').pk}")
        assert (status, ", in doubt: what the view has committed, done: write={}." in text) == (0, True)

    @pytest.mark.parametrize("key", ["done", "running"])
    def test_a_key_that_nobody_can_decide_about_now_gets_no_such_advice(self, key: str) -> None:
        """It is completed, or a worker holds it."""
        assert resolve(f"--key={key}")[1].endswith("\n1 key.\n")

    def test_a_result_that_cannot_be_decrypted_says_so(self) -> None:
        IdempotencyStep.objects.filter(name="write").update(result="enc1:x")
        assert "done: write=(cannot be decrypted)" in resolve("--operation=POST refund/")[1]

    @pytest.mark.parametrize("decision", [[], ["--close=410"], ["--close=410", "--apply"]])
    @pytest.mark.parametrize(
        "selectors", [["--operation=POST gone/"], ["--key=gone"], ["--state=stuck", "--operation=POST refund/"]]
    )
    def test_selecting_nothing_is_one_kind_of_error(self, decision: list[str], selectors: list[str]) -> None:
        status, text = resolve(*selectors, *decision)
        assert (status, text.endswith("No key is selected.")) == (3, True)

    @pytest.mark.parametrize("decision", [[], ["--close=410", "--apply"]])
    def test_a_number_that_is_not_there_ends_the_run(self, decision: list[str]) -> None:
        """A typing error: nothing is decided about the others."""
        others = [f"--id={get('stuck').pk}", f"--id={10**30}"]
        status, text = resolve(*others, *decision)
        assert (status, text.endswith(f"No key has the number {10**30}, or the other options exclude it.")) == (3, True)
        assert get("stuck").status == "in_progress"

    @pytest.mark.django_db(databases=["default", "other"])
    @override_settings(DATABASE_ROUTERS=["tests.routers.ReadsFromOther"])
    def test_keys_and_steps_are_read_where_they_are_written(self) -> None:
        """A replica may lag behind: it does not know yet that the call was started."""
        status, text = resolve("--operation=POST refund/", "--database=default")
        assert (status, "in doubt: call, " in text) == (0, True)
        assert resolve(f"--id={text.split()[0]}", "--close=410", SETTLED, "--database=default")[0] == 0


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
            assert (status, "0 keys" in text) == (3, True)
            assert ". Skipped: ask the called service first, then add --calls-did-not-happen.\n" in text
        assert get(key).decisions is None
        assert resolve("--release", "--calls-did-not-happen", f"--key={key}", "--apply")[0] == 0
        assert not get(key).steps.filter(finished_at=None).exists()

    def test_closing_passes_over_finished_calls(self) -> None:
        """And over calls in doubt: a charge without an order would be forgotten."""
        status, text = resolve("--close=410", "--older-than=0", "--apply")
        assert (status, text.count(f" Skipped: ask the called service first, then add {SETTLED}.\n")) == (3, 2)
        assert "Closed 1 key.\n" in text
        assert [get(key).status for key in ("doubt", "half", "stuck")] == ["failed", "failed", "completed"]
        assert [resolve("--close=410", SETTLED, f"--key={key}", "--apply")[0] for key in ("doubt", "half")] == [0, 0]
        assert (get("doubt").status, get("half").status) == ("completed", "completed")

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
        (["--apply"], "needs a decision"),
        (["--close=200", '--body={"id": 1', "--key=k"], "not JSON: Expecting ',' delimiter"),
        (["--close=200", "--body= [NaN]", "--key=k"], "NaN is not a JSON value"),
        (["--close=500", "--key=k"], "is not a final answer"),
        (["--release", "--key=k", "--database=gone"], "database 'gone', which does not exist"),
        (["--release", "--key=k", "--apply", "--reason= "], "--apply needs --by"),
    ],
)
def test_what_cannot_work_is_refused_before_a_key_is_looked_for(arguments: list[str], message: str) -> None:
    status, text = resolve(*arguments)
    assert (status, message in text, ", policy " in text) == (1, True, False)


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

    def test_a_key_that_has_changed_is_refused(self) -> None:
        """By a retry whose lease has ended since: exit status 3, and the others are decided about."""
        ended = {"attempt": 2, "locked_until": datetime(2026, 1, 1, tzinfo=UTC)}
        a_change = WhileListing(lambda: IdempotencyKey.objects.filter(key="stuck").update(**ended))
        status, text = resolve("--close=410", SETTLED, "--older-than=0", "--apply", out=a_change)
        assert (status, "Closed 2 keys. Refused, because they had changed: 1.\n" in text) == (3, True)
        assert (get("half").status, get("stuck").status) == ("completed", "in_progress")

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_a_key_that_fails_meanwhile_is_not_decided_about(self, decision: list[str]) -> None:
        """Its call may have been made."""
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

    @pytest.mark.parametrize("decision", [["--close=201"], ["--release"]])
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_the_key_alone_is_refused(self, decision: list[str], apply: list[str]) -> None:
        """Also its reference, and if one of them would be passed over. Both are listed with their callers."""
        IdempotencyKey.objects.filter(pk=self.victim.pk).update(policy="hold")
        for key in ("order-4711", self.victim.reference):
            status, text = resolve(f"--key={key}", *decision, *apply)
            assert (status, text.count("caller 'user:")) == (1, 2)
            assert text.endswith(
                "2 keys are selected, perhaps from several callers or operations. Choose one by the number at "
                f"the start of its line, such as --id {self.victim.pk}."
            )
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 0
        assert listed("--key=order-4711") == ["order-4711"] * 2

    @pytest.mark.parametrize("named", [[], ["--key=order-4711"]])
    def test_the_number_chooses_one(self, named: list[str]) -> None:
        assert resolve(f"--id={self.victim.pk}", *named, "--close=201", SETTLED, "--apply")[0] == 0
        assert self.closed() == ["user:victim"]
        assert resolve(f"--id={self.victim.pk}", f"--id={self.other.pk}", "--close=410", SETTLED, "--apply")[0] == 3
        assert self.closed() == ["user:victim", "user:mallory"]


class TestWhyNot:
    """Each key that is passed over has a line that says why, and the exit status is 3."""

    @pytest.mark.parametrize(
        ("key", "options", "why"),
        [
            ("done", ["--close=410"], "it is completed, or a worker holds it"),
            ("running", ["--release"], "it is completed, or a worker holds it"),
            ("half", ["--close=410"], "ask the called service first, then add --finished-calls-are-settled"),
        ],
    )
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_there(self, key: str, options: list[str], why: str, apply: list[str]) -> None:
        row, before = get(key), rows()
        for name in (f"--key={key}", f"--id={row.pk}"):
            status, text = resolve(name, *options, *apply)
            line = text.splitlines()[0]
            assert (status, line.startswith(f"{row.pk} {row.reference} {row.operation}, caller 's': ")) == (3, True)
            assert line.endswith(f" Skipped: {why}.")
        assert rows() == before

    def test_a_key_without_attention_may_be_named(self) -> None:
        """As on its page in the admin: one that has failed, or whose view has ended its own transaction."""
        make_leased("plain", "failed", call=False)
        make_leased("open", "in_progress", call=False)
        assert listed() == ["doubt", "half", "open", "stuck"]
        IdempotencyKey.objects.filter(key="open").update(expires_at=timezone.now() + timedelta(days=1))
        assert listed() == ["doubt", "half", "stuck"]
        assert resolve("--key=open", "--close=410", "--apply")[0] == 3  # what it has committed is unknown
        assert [resolve(f"--key={key}", "--close=410", SETTLED, "--apply")[0] for key in ("plain", "open")] == [0, 0]
        assert (get("plain").status, get("open").status) == ("completed", "completed")


class TestFromCode:
    """`call_command(…, id=…)`: an option that may be repeated takes one value or a list, and no list by accident."""

    def close(self, **options: Any) -> tuple[int, str]:
        out = io.StringIO()
        try:
            call_command("resolve_idempotency_keys", close=410, apply=True, by="bob", reason="T", stdout=out, **options)
        except CommandError as error:
            return error.returncode, str(error)
        return 0, out.getvalue()

    def test_one_number_is_not_read_digit_by_digit(self) -> None:
        """Else "59" would be the rows 5 and 9."""
        for key, number in zip(("doubt", "half", "stuck"), (-5, -9, 1_000_059), strict=True):
            get(key).steps.update(key_id=number)
            IdempotencyKey.objects.filter(key=key).update(id=number)
        assert self.close(id="1000059")[1].endswith("Closed 1 key.\n")
        assert [get(key).status == "completed" for key in ("doubt", "half", "stuck")] == [False, False, True]

    @pytest.mark.parametrize("name", ["operation", "state", "id"])
    @pytest.mark.parametrize("others", [{}, {"older_than": 0}])
    def test_an_empty_list_selects_nothing(self, name: str, others: dict[str, Any]) -> None:
        """A script has found no key: this must not be a decision about all keys."""
        before = rows()
        assert self.close(**{name: []}, **others) == (3, "No key is selected.")
        assert rows() == before
