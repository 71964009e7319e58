"""The words of the published specification."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from django_idempotency.endpoints import list_endpoints
from django_idempotency.endpoints.specification import key_format, lifetime
from django_idempotency.engine.conf import resolve
from django_idempotency.keys import from_form_field
from tests.integration.endpoints.shop import run, tenant, view


def test_c4_what_makes_a_key_unique_is_published(urlconf: Any) -> None:
    """The scope in words; a key that is not read from the header is told."""
    urls = urlconf(
        refuse=idempotent(anonymous="refuse", methods=["POST"], may_replay=view, fingerprint=None)(view),
        event=idempotent(key=tenant, methods=["POST"], fingerprint=tenant)(view),
        form=idempotent(key=from_form_field(), methods=["POST"])(view),
    )
    refuse, event, form = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
    assert "- Key: the form field 'idempotency_key'\n" in form
    assert "the credential or session that was sent; others are refused; operation `POST refuse`" in refuse
    assert '- 403 `unidentified-caller` "Idempotency-Key needs an identified caller"' in refuse
    assert '- 403 `replay-refused` "Replay is not permitted"' in refuse
    assert "Compared with the first request: not at all" in refuse
    assert "- Key: read by tests.integration.endpoints.shop.tenant\n" in event
    assert (
        "first request: method, path, query string and what tests.integration.endpoints.shop.tenant returns\n" in event
    )
    assert "- Header" not in event


def test_c9_what_is_compared_is_published(urlconf: Any) -> None:
    """The fields that count are told."""
    urls = urlconf(chosen=idempotent(methods=["POST"], fingerprint=("amount", "meta"))(view))
    published = run("--format", "markdown", urlconf=urls)[0]
    assert "first request: method, path, query string, content type and the body fields amount, meta\n" in published


def test_leased_endpoints(urlconf: Any) -> None:
    """Their own answers: 202 with the page of the state, and an outcome that nobody knows."""
    urls = urlconf(
        accepted=require_POST(idempotent(lease=60, in_progress_status=202)(view)),
        held=require_POST(idempotent(lease=60, on_abandoned="hold")(view)),
    )
    accepted, held = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
    assert '- 202 `in-progress` "Accepted": The first request with this key is still being processed' in accepted
    assert ("is outstanding" in accepted, "is unknown" in accepted) == (False, False)
    assert '- 409 `outcome-unknown` "The outcome for this Idempotency-Key is unknown"' in held
    assert [endpoint.mode for endpoint in list_endpoints(urls)] == ["leased", "leased, hold"]


class TestWords:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (86400, "1 day"),
            (172800, "2 days"),
            (5400, "90 minutes"),
            (7200, "2 hours"),
            (1, "1 second"),
            (1.5, "1.5 seconds"),
        ],
    )
    def test_lifetime(self, seconds: float, text: str) -> None:
        """In the largest unit that fits without a rest."""
        assert lifetime(SimpleNamespace(ttl_seconds=seconds)) == text  # type: ignore[arg-type]

    @pytest.mark.parametrize("quoted", [True, False])
    def test_uuids(self, quoted: bool, settings: Any) -> None:
        """The ready validator is known; another one is only mentioned."""
        settings.IDEMPOTENCY = {
            "REQUIRE_QUOTED_KEY": quoted,
            "KEY_VALIDATOR": "django_idempotency.keys.is_uuid",
        }
        assert key_format(resolve()).startswith("A UUID, in double quotes" if quoted else "A UUID. In double quotes")
        settings.IDEMPOTENCY = {"KEY_VALIDATOR": view}
        assert key_format(resolve()).endswith("The server demands a form of its own beyond that.")
