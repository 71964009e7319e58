"""Each column of a key: is it personal data, and is it exported? A new one has to say so here or on the page."""

from __future__ import annotations

import re

from django_idempotency.admin.export import COLUMNS
from django_idempotency.models import IdempotencyKey
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
