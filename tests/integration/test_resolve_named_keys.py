"""`resolve_idempotency_keys --key` and `--id`: whose key it is, and why a named key is not decided about."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_idempotency.maintenance import record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.expired import make_leased
from tests.resolving import resolve

pytestmark = pytest.mark.django_db


def statuses() -> dict[str, str]:
    return {key.scope: key.status for key in IdempotencyKey.objects.all()}


class TestOneKeyOfTwoCallers:
    """A client that knows the key of another one can use it too, and let its own call fail."""

    @pytest.fixture(autouse=True)
    def _keys(self) -> None:
        self.victim = create_key("order-4711", scope="user:victim", in_doubt=["charge"])
        self.other = create_key("order-4711", scope="user:mallory", in_doubt=["charge"])

    def test_the_list_says_whose_key_each_is(self) -> None:
        """Behind the number that the admin shows, too."""
        status, text = resolve("--operation=POST orders/", "--close=410")
        assert status == 0
        assert text.splitlines()[:2] == [
            f"{row.pk} {row.reference} POST orders/, caller {row.scope!r}: failed, policy retry, attempt 1, "
            "in doubt: charge."
            for row in (self.victim, self.other)
        ]

    @pytest.mark.parametrize("decision", [["--close=201", "--body=the victim's"], ["--release"], ["--record=charge=1"]])
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_the_key_alone_is_refused(self, decision: list[str], apply: list[str]) -> None:
        """Also its reference; both are listed, and nothing is changed."""
        for key in ("order-4711", self.victim.reference):
            status, text = resolve(f"--key={key}", *decision, *apply)
            assert (status, text.count("in doubt: charge.\n")) == (1, 2)
            assert text.endswith(
                f"--key {key!r} selects 2 keys, of several callers or operations. Choose by the number at the "
                f"beginning of the line, such as --id {self.victim.pk}."
            )
        assert statuses() == {"user:victim": "failed", "user:mallory": "failed"}
        assert [key.decisions for key in IdempotencyKey.objects.all()] == [None, None]

    def test_a_key_that_is_passed_over_counts(self) -> None:
        """A release of the other one would not be what was asked for."""
        IdempotencyKey.objects.filter(pk=self.victim.pk).update(policy="hold")
        assert resolve("--key=order-4711", "--release", "--apply")[0] == 1
        assert [key.decisions for key in IdempotencyKey.objects.all()] == [None, None]

    @pytest.mark.parametrize("named", [[], ["--key=order-4711"]])
    def test_the_number_chooses_one(self, named: list[str]) -> None:
        status, text = resolve(f"--id={self.victim.pk}", *named, "--close=201", "--apply")
        assert (status, text.splitlines()[-1]) == (0, "Close: 1.")
        assert statuses() == {"user:victim": "completed", "user:mallory": "failed"}

    def test_numbers_may_be_repeated(self) -> None:
        assert resolve(f"--id={self.victim.pk}", f"--id={self.other.pk}", "--close=410", "--apply")[0] == 0
        assert statuses() == {"user:victim": "completed", "user:mallory": "completed"}

    def test_another_option_may_choose_one(self) -> None:
        """Then the key is of one operation."""
        IdempotencyKey.objects.filter(pk=self.other.pk).update(operation="POST refund/")
        assert resolve("--key=order-4711", "--operation=POST refund/", "--close=410", "--apply")[0] == 0
        assert statuses() == {"user:victim": "failed", "user:mallory": "completed"}


class TestWhyNot:
    """Each name that selects nothing has a line that says why, and the exit status is 3."""

    @pytest.fixture(autouse=True)
    def _keys(self) -> None:
        make_leased("doubt", "failed", doubt=True)
        make_leased("plain", "failed", call=False)
        make_leased("running", "in_progress", lapsed=False, doubt=True)
        make_leased("open", "in_progress", call=False)
        make_leased("done", "completed")
        IdempotencyKey.objects.filter(key="running").update(locked_until=datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC))

    @pytest.mark.parametrize(
        ("key", "options", "why"),
        [
            ("done", ["--close=410"], "it is completed."),
            ("running", ["--close=410"], "a worker holds its lease until 2099-01-02 03:04:05+00:00."),
            ("running", ["--record=call=1"], "a worker holds its lease until 2099-01-02 03:04:05+00:00."),
            ("plain", ["--close=410"], "it needs no decision: the client's next retry runs."),
            ("open", ["--close=410"], "its work has ended its own transaction, and may still run. Look again later."),
            ("doubt", ["--record=chrage=1"], "it has no step 'chrage' in doubt. In doubt: call."),
            ("doubt", ["--record=write=1"], "it has no step 'write' in doubt. In doubt: call."),
            ("plain", ["--record=call=1"], "it has no step 'call' in doubt. In doubt: none."),
            ("doubt", ["--close=410", "--operation=POST refund/"], "the other options exclude it."),
            ("doubt", ["--record=call=1", "--state=stuck"], "the other options exclude it."),
        ],
    )
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_there(self, key: str, options: list[str], why: str, apply: list[str]) -> None:
        row = IdempotencyKey.objects.get(key=key)
        before = list(IdempotencyKey.objects.order_by("pk").values())
        for name, option in ((f"--key={key}", f"--key {key!r}"), (f"--id={row.pk}", f"--id {row.pk}")):
            status, text = resolve(name, *options, *apply)
            assert (status, text.splitlines()[0]) == (3, f"{option} selects nothing. {row.pk} {row}: {why}")
        assert list(IdempotencyKey.objects.order_by("pk").values()) == before

    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_not_there(self, apply: list[str]) -> None:
        """A misspelt one, or the admin's number as a key."""
        for name, line in (
            ("--key=dubt", "--key 'dubt' selects nothing. There is no such key."),
            ("--id=0", "--id 0 selects nothing. There is no such key."),
            (f"--id={10**30}", f"--id {10**30} selects nothing. There is no such key."),
            ("--key=17", "--key '17' selects nothing. There is no such key. For the number of a row, write --id 17."),
        ):
            status, text = resolve(name, "--close=410", *apply)
            assert (status, text.splitlines()[0]) == (3, line)

    def test_the_others_are_decided_about(self) -> None:
        status, text = resolve("--key=doubt", "--key=done", "--close=410", "--apply")
        assert (status, text.splitlines()[-2:]) == (3, ["Close: 1.", "Some keys were not decided about."])
        assert "--key 'done' selects nothing." in text
        assert IdempotencyKey.objects.get(key="doubt").status == "completed"

    def test_each_key_under_the_name_has_a_line(self) -> None:
        other = create_key("done", scope="user:1", operation="POST pay/")
        lines = resolve("--key=done", "--close=410")[1].splitlines()
        assert [line.partition(": ")[2] for line in lines[:2]] == ["it is completed."] * 2
        assert f"{other.pk} {other}" in lines[1]

    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_passed_over_is_listed(self, apply: list[str]) -> None:
        """The last line says why."""
        status, text = resolve("--key=doubt", "--release", *apply)
        assert (status, text.count("selects nothing")) == (3, 0)
        assert ", in doubt: call. Passed over.\n" in text
        assert "Passed over, because their policy is not retry, or a write is in doubt: 1." in text

    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_selection_without_names_may_find_nothing(self, apply: list[str]) -> None:
        assert resolve("--operation=POST refund/", "--close=410", *apply)[0] == 0


class TestCorrection:
    """A result that a person has recorded can be corrected until the key is completed, as in the admin."""

    @pytest.fixture(autouse=True)
    def _keys(self) -> None:
        self.row = create_key("doubt", in_doubt=["charge"], steps={"fee": 1})
        record_outcome(self.row.pk, "charge", {"id": "ch_1"}, attempt=1, by="ann", reason="T")

    def results(self) -> list[str | None]:
        return list(self.row.steps.order_by("name").values_list("result", flat=True))

    @pytest.mark.parametrize("by_id", [False, True])
    def test_a_named_key(self, by_id: bool) -> None:
        name = f"--id={self.row.pk}" if by_id else "--key=doubt"
        status, text = resolve(name, '--record=charge={"id": "ch_2"}', "--apply")
        assert (status, text.splitlines()[-1]) == (0, "Record: 1.")
        assert "This replaces the result of 'charge' that a person has recorded.\n" in text
        assert self.results() == ['{"value": {"id": "ch_2"}}', '{"value": 1}']

    def test_the_dry_run_says_so(self) -> None:
        status, text = resolve("--key=doubt", "--record=charge=1")
        assert (status, text.splitlines()[1:]) == (
            0,
            [
                "This replaces the result of 'charge' that a person has recorded.",
                "Record: 1. Nothing was changed: --apply is missing.",
            ],
        )

    def test_a_key_without_a_name_is_not_found(self) -> None:
        """A script that runs twice must not replace what a person has found out."""
        status, text = resolve("--operation=POST orders/", "--record=charge=1", "--apply")
        assert (status, text) == (0, "Record: 0.\n")

    def test_the_result_of_a_call_cannot_be_corrected(self) -> None:
        assert resolve("--key=doubt", "--record=fee=2", "--apply")[0] == 3
        assert self.results() == ['{"value": {"id": "ch_1"}}', '{"value": 1}']

    def test_a_write_that_a_person_has_recorded(self) -> None:
        """Such a key needs no other decision."""
        make_leased("write", "failed", call=False)
        row = IdempotencyKey.objects.get(key="write")
        row.steps.update(finished_at=None, result=None)
        record_outcome(row.pk, "write", 1, attempt=1)
        assert resolve("--key=write", "--record=write=2", "--apply")[0] == 0
        assert row.steps.get().result == '{"value": 2}'

    @pytest.mark.parametrize(
        "changed",
        [{"status": "completed"}, {"status": "in_progress", "locked_until": datetime(2099, 1, 1, tzinfo=UTC)}],
        ids=["completed", "at work"],
    )
    def test_not_of_a_key_that_is_completed_or_at_work(self, changed: dict[str, object]) -> None:
        IdempotencyKey.objects.filter(pk=self.row.pk).update(**changed)
        status, text = resolve("--key=doubt", "--record=charge=1", "--apply")
        assert (status, "selects nothing" in text) == (3, True)
        assert self.results() == ['{"value": {"id": "ch_1"}}', '{"value": 1}']

    def test_not_with_a_trail_that_cannot_be_read(self) -> None:
        """The admin offers no correction either."""
        IdempotencyKey.objects.filter(pk=self.row.pk).update(decisions="enc1:x")
        status, text = resolve("--key=doubt", "--record=charge=1")
        assert status == 3
        assert "it has no step 'charge' in doubt. In doubt: none." in text

    def test_a_released_step_has_nothing_to_correct(self) -> None:
        """Its trail has the name of the step; the step itself is gone."""
        self.row.steps.filter(name="charge").delete()
        release_for_retry(self.row.pk, attempt=1)
        assert resolve("--key=doubt", "--record=charge=1", "--apply")[0] == 3

    def test_a_trail_that_cannot_be_read_gets_no_decision(self) -> None:
        """The decision would be added to it. The error says what is missing."""
        IdempotencyKey.objects.filter(pk=self.row.pk).update(decisions="enc1:x", status="failed")
        self.row.steps.filter(name="charge").update(finished_at=None)
        status, text = resolve("--key=doubt", "--close=200", "--apply")
        assert (status, "ENCRYPTION_KEYS" in text) == (1, True)
        assert statuses() == {self.row.scope: "failed"}
