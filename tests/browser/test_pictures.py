"""The pictures of docs/runbook.md: each shows the text that its page has now.

    PICTURES=docs/images python -m pytest -n 0 tests/browser/test_pictures.py

takes them anew, with the text beside each. The texts are compared, and not the pixels.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.acceptance.pages import ROOT
from tests.browser.doubts import LIST_PAGE, fail_in_doubt
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import breaks

IMAGES = ROOT / "docs/images"
SMALL = 150_000
"""Bytes of a picture: a clone brings all that were ever committed."""
CHANGES = re.compile(r"\d{4}-\d\d-\d\d \S+ \S+ \(.* UTC\)|(?<=ser[: ])\d+|[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}")
"""Times, primary keys, and the derived keys that they enter."""
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.admin_urls"),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="other databases show no open transactions"),
]


def leave_two_keys(client: Any) -> IdempotencyKey:
    """A charge in doubt and one without its order, twenty minutes ago, in a shop; return the first."""
    client.force_login(User.objects.get(username="ada"))
    fail_in_doubt(client, key="8e03978e-40d5-43e8-bc93-6894a57f9324")
    GATEWAY.reset()
    HOOKS["between"] = lambda operation: breaks()
    client.post("/pay", headers={"Idempotency-Key": "0f9a7c1e-77b1-4c0e-9c65-1f2d3a4b5c6d"})
    HOOKS.clear()
    ago = timedelta(minutes=20)
    error = "TimeoutError: line 42 of shop.payments.pay"
    earlier = {name: F(name) - ago for name in ("created_at", "updated_at", "attention_at")}
    IdempotencyKey.objects.update(worker="web-3:4711", last_error=error, **earlier)
    IdempotencyStep.objects.update(started_at=F("started_at") - ago)
    IdempotencyStep.objects.exclude(error=None).update(error=error)
    return IdempotencyKey.objects.get(operation="POST pay/hold")


def test_each_picture_shows_the_text_of_its_page(admin: Any, client: Any) -> None:
    """The list, a key and a decision, without Django's sidebar."""
    key = leave_two_keys(client)
    admin.set_viewport_size({"width": 1100, "height": 800})
    admin.click("#toggle-nav-sidebar")
    shown = {
        "admin-list": ("", ".idempotency-overview"),
        "admin-key": (f"{key.pk}/change/", ".idempotency-story, .idempotency-timeline"),
        "admin-decision": (f"{key.pk}/release/", "#content-main"),
    }
    for name, (path, parts) in shown.items():
        admin.goto(f"{LIST_PAGE}{path}")
        text = CHANGES.sub("…", "\n".join(admin.locator(parts).all_inner_texts())).strip() + "\n"
        if folder := os.environ.get("PICTURES"):
            admin.screenshot(path=Path(folder) / f"{name}.png", full_page=name == "admin-decision")
            (Path(folder) / f"{name}.txt").write_text(text)
        assert text == (IMAGES / f"{name}.txt").read_text(), f"{name}.png shows an older text"
        assert (IMAGES / f"{name}.png").stat().st_size < SMALL


BESIDE = """(([box, label]) => Math.abs(box.y + box.height / 2 - label.y - label.height / 2))(
    ["input", "label"].map(tag => document.querySelector(`.checkbox-row ${tag}`).getBoundingClientRect())
)"""
BAR = "getComputedStyle(document.querySelector('.breadcrumbs')).backgroundColor"


def test_a_decision_looks_as_a_page_of_django(admin: Any, client: Any) -> None:
    """Its path is the bar that the list has, and its confirmation stands beside the box."""
    bar = admin.evaluate(BAR)
    fail_in_doubt(client)
    admin.goto(f"{LIST_PAGE}{IdempotencyKey.objects.get().pk}/release/")
    assert admin.evaluate(BAR) == bar
    assert admin.evaluate(BESIDE) < 4
