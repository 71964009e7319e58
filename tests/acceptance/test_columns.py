"""Each column of a key: is it personal data, and is it exported? A new one has to say so here or on the page."""

from __future__ import annotations

import re

from django_idempotency.admin.export import COLUMNS
from django_idempotency.engine.execution.attempt import MAX_NAME
from django_idempotency.engine.execution.resources import MAX_ID, MAX_TYPE
from django_idempotency.engine.protocol.digests import MAX_READABLE_SCOPE
from django_idempotency.engine.protocol.key_syntax import MAX_LENGTH
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.acceptance.reference import DOCS

FIELDS = {field.name for field in IdempotencyKey._meta.concrete_fields}
NOTHING_OF_A_PERSON = {
    *("id", "key_hash", "scope_hash", "fingerprint", "operation", "resource_type", "status", "status_code", "policy"),
    *("attempt", "worker", "unknown", "effects", "last_error", "locked_until", "attention_at"),
    *("created_at", "updated_at", "completed_at", "expires_at"),
}
"""Hashes, names and numbers of the project's own. An error is stored without its message."""
SHOWN_AS = {
    "resource": {"resource_type", "resource_id"},
    "claimed": {"created_at"},
    "changed": {"updated_at"},
    "reference": {"key_hash"},
    "version": {"updated_at", "locked_until", "attention_at", "status", "unknown", "effects"},
    "state": {"status", "locked_until", "expires_at", "attention_at", "unknown", "effects", "last_error"},
}
"""What a column of the export is made of."""
NOT_EXPORTED = {"scope_hash", "fingerprint", "status_code", "headers", "body", "policy", "decisions", "completed_at"}
"""Responses and decisions are on the page of a key, for those who may read them."""


def test_the_page_on_personal_data_names_each_column_that_may_hold_some() -> None:
    text = (DOCS / "privacy.md").read_text().split("## Personal data\n")[1].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", text)) & FIELDS
    assert (FIELDS - named, named & NOTHING_OF_A_PERSON) == (NOTHING_OF_A_PERSON, set())


def test_each_column_is_exported_or_left_out_on_purpose() -> None:
    exported = set().union(*(SHOWN_AS.get(name, {name}) for name in COLUMNS))
    assert (FIELDS - exported, exported - FIELDS) == (NOT_EXPORTED, set())


def test_what_is_refused_as_too_long_is_what_a_column_cannot_hold() -> None:
    """A narrower column would cut a key on one database and fail on another."""
    width = {
        (f.model, f.name): f.max_length for m in (IdempotencyKey, IdempotencyStep) for f in m._meta.concrete_fields
    }
    assert {
        (IdempotencyKey, "key"): MAX_LENGTH,
        (IdempotencyKey, "scope"): MAX_READABLE_SCOPE,
        (IdempotencyKey, "resource_type"): MAX_TYPE,
        (IdempotencyKey, "resource_id"): MAX_ID,
        (IdempotencyStep, "name"): MAX_NAME,
    }.items() <= width.items()
