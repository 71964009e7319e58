"""The pictures of docs/runbook.md: `python -m tests.browser.screenshots` writes docs/images. It needs Chromium."""

from __future__ import annotations

import os
from datetime import timedelta
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

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.browser.chromium import CHROMIUM, FLAGS

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LIST = "/admin/django_idempotency/idempotencykey/"
A_DAY = [22, 14, 9, 6, 5, 7, 15, 38, 71, 96, 104, 99, 88, 102, 110, 97, 84, 73, 78, 91, 86, 64, 47, 31]
"""Keys in each hour."""


def main() -> None:
    setup_test_environment(debug=False)
    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    User.objects.create_superuser("ada", password="lovelace")
    doubt = fill()
    server = LiveServer("localhost")
    IMAGES.mkdir(exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for theme in ("light", "dark"):
                size: Any = {"width": 1280, "height": 860}
                page = browser.new_page(base_url=server.url, color_scheme=theme, viewport=size)
                page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
                page.goto(LIST)
                page.fill("#id_username", "ada")
                page.fill("#id_password", "lovelace")
                page.click("input[type=submit]")
                page.wait_for_selector(".idempotency-overview")
                page.screenshot(path=IMAGES / f"admin-list-{theme}.png")
                if theme == "light":
                    page.goto(f"{LIST}{doubt.pk}/change/")
                    page.screenshot(path=IMAGES / "admin-page.png", full_page=True)
            browser.close()
    finally:
        server.stop()
        runner.teardown_databases(databases)


def fill() -> IdempotencyKey:
    """A day of a shop, and one key in each state at its end. Returns the one in doubt."""
    now = timezone.now()
    begun = now.replace(minute=0, second=0, microsecond=0)
    for hour, count in enumerate(A_DAY, 1 - len(A_DAY)):
        for number in range(count):
            at = begun + hour * timedelta(hours=1) + number * timedelta(hours=1) / count
            if at < now - timedelta(minutes=20):
                make(f"order-{-hour:02}{number:03}", at=at)
    IdempotencyKey.objects.filter(pk__in=IdempotencyKey.objects.order_by("pk")[:3].values("pk")).update(status="failed")
    minutes = [now - timedelta(minutes=number) for number in range(20)]
    busy: Any = {"status": "in_progress", "operation": "POST payments/", "status_code": None, "body": None}
    make("9f1c2e77-5a40", at=minutes[19], **busy, locked_until=minutes[15])
    doubt = make(
        "4b8d03aa-19c2",
        at=minutes[12],
        **{**busy, "status": "failed"},
        last_error="ReadTimeout: the gateway did not answer",
    )
    steps: Any = {"key": doubt, "attempt": 1, "started_at": minutes[12]}
    IdempotencyStep.objects.create(
        name="reserve",
        kind="write",
        result='{"order": 4711}',
        finished_at=minutes[12] + timedelta(seconds=0.012),
        **steps,
    )
    IdempotencyStep.objects.create(name="charge", kind="call", error="ReadTimeout: the gateway did not answer", **steps)
    make("c0ffee00-77b1", at=minutes[8])
    make("71d4e9b3-0f5a", at=minutes[5], status_code=422)
    make("e29ab6f8-3d61", at=minutes[2], **busy, locked_until=now + timedelta(minutes=3))
    make("0a6e51cd-8842", at=minutes[0])
    return doubt


def make(key: str, *, at: Any, **fields: Any) -> IdempotencyKey:
    identity = identify(scope="user:auth.User:7", operation="POST orders/", key=key)
    known: dict[str, Any] = {
        "status": "completed",
        "operation": identity.operation,
        "status_code": 201,
        "headers": '[["Content-Type","application/json"]]',
        "body": b'{"order":4711,"amount":"19.90","currency":"EUR"}',
    }
    return IdempotencyKey.objects.create(
        key_hash=identity.key_hash,
        scope_hash=identity.scope_hash,
        scope=identity.scope,
        key=key,
        created_at=at,
        expires_at=at + timedelta(days=1),
        **{**known, **fields},
    )


if __name__ == "__main__":
    main()
