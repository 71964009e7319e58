"""`manage.py resolve_idempotency_keys`: which keys, which decision, what it prints, and its exit status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from django_idempotency.engine.stores.sealing import MARK
from django_idempotency.maintenance import record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.expired import make_leased
from tests.resolving import get, listed, resolve, rows

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("keys_of_each_kind")]
SETTLED = "--finished-calls-are-settled"


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

    def test_a_released_step_has_nothing_to_correct(self) -> None:
        """Its trail has the name of the step; the step itself is gone."""
        self.row.steps.filter(name="charge").delete()
        release_for_retry(self.row.pk, attempt=1)
        assert resolve("--key=recorded", "--record=charge=1", "--apply")[0] == 3

    def test_a_trail_that_cannot_be_read_gets_no_decision(self) -> None:
        """The decision would be added to it. The error says what is missing."""
        IdempotencyKey.objects.filter(pk=self.row.pk).update(decisions=f"{MARK}x")
        status, text = resolve("--key=recorded", "--close=200", SETTLED, "--apply")
        assert (status, "ENCRYPTION_KEYS" in text, get("recorded").status) == (1, True, "failed")
