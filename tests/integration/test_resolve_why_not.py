"""`manage.py resolve_idempotency_keys`: which keys, which decision, what it prints, and its exit status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from django_idempotency.engine.stores.sealing import MARK
from django_idempotency.maintenance import record_outcome
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.expired import make_leased
from tests.resolving import get, listed, resolve, rows

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("keys_of_each_kind")]
SETTLED = "--finished-calls-are-settled"


class TestWhyNot:
    """Each key that is passed over has a line that says why, and the exit status is 3."""

    @pytest.mark.parametrize(
        ("key", "options", "why"),
        [
            ("done", ["--close=410"], "it is completed, or a worker holds it"),
            ("running", ["--release"], "it is completed, or a worker holds it"),
            ("running", ["--record=call=1"], "it is completed, or a worker holds it"),
            ("doubt", ["--record=chrage=1"], "it has no step 'chrage' in doubt"),
            ("doubt", ["--record=write=1"], "it has no step 'write' in doubt"),
            ("half", ["--record=call=1"], "it has no step 'call' in doubt"),
            ("half", ["--close=410"], "look outside first, then add --finished-calls-are-settled"),
        ],
    )
    @pytest.mark.parametrize("apply", [[], ["--apply"]])
    def test_a_key_that_is_there(self, key: str, options: list[str], why: str, apply: list[str]) -> None:
        row, before = get(key), rows()
        for name in (f"--key={key}", f"--id={row.pk}"):
            status, text = resolve(name, *options, *apply)
            line = text.splitlines()[0]
            assert (status, line.startswith(f"{row.pk} {row.reference} {row.operation}, caller 's': ")) == (3, True)
            assert line.endswith(f" Passed over: {why}.")
        assert rows() == before

    def test_a_key_without_attention_may_be_named(self) -> None:
        """As on its page in the admin: one that has failed, or whose view has ended its own transaction."""
        make_leased("plain", "failed", call=False)
        make_leased("open", "in_progress", call=False)
        assert listed() == ["doubt", "half", "open", "stuck"]
        IdempotencyKey.objects.filter(key="open").update(expires_at=timezone.now() + timedelta(days=1))
        assert listed() == ["doubt", "half", "stuck"]
        assert [resolve(f"--key={key}", "--close=410", "--apply")[0] for key in ("plain", "open")] == [0, 0]
        assert (get("plain").status, get("open").status) == ("completed", "completed")


class TestCorrection:
    """A result that a person has recorded can be corrected until the key is completed, as in the admin."""

    @pytest.fixture(autouse=True)
    def _recorded(self) -> None:
        self.row = create_key("recorded", in_doubt=["charge"], steps={"fee": 1})
        record_outcome(self.row, "charge", {"id": "ch_1"}, by="ann", reason="T")

    def results(self) -> list[str | None]:
        return list(self.row.steps.order_by("name").values_list("result", flat=True))

    def test_a_named_key(self) -> None:
        for name, number in ((f"--id={self.row.pk}", 2), ("--key=recorded", 3)):
            status, text = resolve(name, f'--record=charge={{"id": "ch_{number}"}}', "--apply")
            assert (status, text.splitlines()[-1]) == (0, "Decided about 1 key.")
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
