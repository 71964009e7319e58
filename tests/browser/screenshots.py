"""The pictures of docs/runbook.md: `python -m tests.browser.screenshots` writes docs/images. It needs Chromium."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright keeps an event loop in this thread

import django

django.setup()

from django.contrib.auth.models import User
from django.test.runner import DiscoverRunner
from django.test.utils import setup_test_environment
from django.utils import timezone
from playwright.sync_api import sync_playwright
from pytest_django.live_server_helper import LiveServer

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import make_key
from tests.browser.chromium import CHROMIUM, FLAGS

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LIST = "/admin/django_idempotency/idempotencykey/"
A_DAY = [22, 14, 9, 6, 5, 7, 15, 38, 71, 96, 104, 99, 88, 102, 110, 97, 84, 73, 78, 91, 86, 64, 47, 31]
"""Keys in each hour."""
DAY = timedelta(days=1)
DESK = {"width": 1280, "height": 860}


def main() -> None:
    setup_test_environment(debug=False)
    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    User.objects.create_superuser("ada", password="lovelace")
    doubt = fill()
    server = LiveServer("localhost")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for theme in ("light", "dark"):
                page = signed_in(browser, base_url=server.url, color_scheme=theme, viewport=DESK)
                page.screenshot(path=IMAGES / f"admin-list-{theme}.png")
                if theme == "light":
                    page.goto(f"{LIST}{doubt.pk}/change/")
                    page.screenshot(path=IMAGES / "admin-page.png", full_page=True)
            browser.close()
    finally:
        server.stop()
        runner.teardown_databases(databases)


def signed_in(browser: Any, **options: Any) -> Any:
    """A page on the list of keys."""
    page = browser.new_page(**options)
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.goto(LIST)
    page.fill("#id_username", "ada")
    page.fill("#id_password", "lovelace")
    page.click("input[type=submit]")
    page.wait_for_selector(".idempotency-overview")
    return page


def fill() -> IdempotencyKey:
    """A day of a shop, and one key in each state at its end. Returns the one in doubt."""
    now = timezone.now()
    begun = now.replace(minute=0, second=0, microsecond=0)
    for hour, count in enumerate(A_DAY, 1 - len(A_DAY)):
        for number in range(count):
            at = begun + hour * timedelta(hours=1) + number * timedelta(hours=1) / count
            if at < now - timedelta(minutes=20):
                make(f"order-{-hour:02}{number:03}", at=at)
    IdempotencyKey.objects.filter(pk__in=IdempotencyKey.objects.order_by("pk")[:3].values("pk")).update(
        status="failed", last_error="It broke."
    )
    minutes = [now - timedelta(minutes=number) for number in range(20)]
    busy: Any = {
        "status": "in_progress",
        "operation": "POST ^payments/(?P<order>[0-9]+)/$",
        "status_code": None,
        "body": None,
        "policy": "hold",
    }
    failed = {**busy, "status": "failed"}
    make("9f1c2e77-5a40", at=minutes[19], **busy, locked_until=minutes[15])
    done = make("5e0a17c2-63bd", at=minutes[18], operation=busy["operation"], policy="hold")
    step(done, "charge", minutes[18], result='{"value": {"id": "ch_3PxQ1", "status": "succeeded"}}')
    doubt = make(
        "4b8d03aa-19c2-4f0e-8f58-1f6f3e6f5a51",
        at=minutes[12],
        attempt=2,
        **failed,
        resource_type="order",
        resource_id="4711",
        last_error="ReadTimeout: the gateway did not answer",
    )
    step(doubt, "reserve", minutes[12], kind="write", result='{"value": {"order": 4711}}')
    step(doubt, "charge", minutes[11], error="ReadTimeout: the gateway did not answer", attempt=2)
    past: Any = {
        "name": "charge",
        "kind": "call",
        "attempt": 1,
        "started_at": minutes[12].isoformat(),
        "error": "Timeout",
    }
    released: Any = {"action": "release", "at": (minutes[12] + timedelta(seconds=40)).isoformat(), "by": "bob"}
    trail = [{**released, "reason": "T-4690: not in the gateway's books", "attempt": 1, "steps": [past]}]
    IdempotencyKey.objects.filter(pk=doubt.pk).update(decisions=json.dumps(trail))
    half = make(
        "c0ffee00-77b1",
        at=minutes[8],
        **failed,
        last_error="ValueError: disk full",
        resource_type="auth.User",
        resource_id="1",
    )
    step(half, "charge", minutes[8], result='{"value": {"id": "ch_3PxQ7"}}')
    make("71d4e9b3-0f5a", at=minutes[5], status_code=422)
    make("e29ab6f8-3d61", at=minutes[2], **busy, locked_until=now + timedelta(minutes=3))
    make("0a6e51cd-8842", at=minutes[0], headers='[["Content-Type","application/json"],["Location","/orders/4712/"]]')
    return doubt


def step(key: IdempotencyKey, name: str, at: datetime, *, kind: str = "call", attempt: int = 1, **fields: Any) -> None:
    finished_at = at + timedelta(seconds=0.412) if "result" in fields else None
    IdempotencyStep.objects.create(
        key=key, name=name, kind=kind, attempt=attempt, started_at=at, finished_at=finished_at, **fields
    )


def make(key: str, *, at: Any, **fields: Any) -> IdempotencyKey:
    known: dict[str, Any] = {"body": b'{"order":4711,"amount":"19.90","currency":"EUR"}', "expires_at": at + DAY}
    return make_key(key, created_at=at, updated_at=at, completed_at=None, **{**known, **fields})


if __name__ == "__main__":
    main()
