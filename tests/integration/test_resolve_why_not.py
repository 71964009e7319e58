"""`manage.py resolve_idempotency_keys`: which keys, which decision, what it prints, and its exit status."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_idempotency.engine.stores.sealing import MARK
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


def test_a_trail_that_cannot_be_read_gets_no_decision() -> None:
    """The decision would be added to it. The error says what is missing."""
    create_key("recorded", in_doubt=["charge"])
    IdempotencyKey.objects.filter(key="recorded").update(decisions=f"{MARK}x")
    status, text = resolve("--key=recorded", "--close=200", SETTLED, "--apply")
    assert (status, "ENCRYPTION_KEYS" in text, get("recorded").status) == (1, True, "failed")
