"""The pictures of docs/runbook.md: `python -m tests.browser.screenshots` writes docs/images. It needs Chromium.

With a folder (`python -m tests.browser.screenshots /tmp/pages`), it writes each page in both themes, on a desk and on a
phone, to look at.
"""

from __future__ import annotations

import json
import os
import sys
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

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.browser.chromium import CHROMIUM, FLAGS

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LIST = "/admin/django_idempotency/idempotencykey/"
A_DAY = [22, 14, 9, 6, 5, 7, 15, 38, 71, 96, 104, 99, 88, 102, 110, 97, 84, 73, 78, 91, 86, 64, 47, 31]
"""Keys in each hour."""


PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 860}


def main() -> None:
    setup_test_environment(debug=False)
    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    User.objects.create_superuser("ada", password="lovelace")
    pages = pages_of(fill())
    server = LiveServer("localhost")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            if sys.argv[1:]:
                every(browser, server.url, Path(sys.argv[1]), pages)
            else:
                for theme in ("light", "dark"):
                    page = signed_in(browser, server.url, color_scheme=theme, viewport=DESK)
                    page.screenshot(path=IMAGES / f"admin-list-{theme}.png")
                    if theme == "light":
                        page.goto(pages["doubt"])
                        page.screenshot(path=IMAGES / "admin-page.png", full_page=True)
            browser.close()
    finally:
        server.stop()
        runner.teardown_databases(databases)


def every(browser: Any, url: str, folder: Path, pages: dict[str, str]) -> None:
    """Each page in both themes, on a desk and on a phone. Says which page is wider than its window."""
    folder.mkdir(exist_ok=True)
    for theme in ("light", "dark"):
        for size, viewport in {"desk": DESK, "phone": PHONE}.items():
            page = signed_in(browser, url, color_scheme=theme, viewport=viewport, sidebar=True)
            for name, address in pages.items():
                page.goto(address)
                if "record" in name or "answer" in name:
                    page.screenshot(path=folder / f"{theme}-{size}-{name}-form.png", full_page=True)
                    enter(page, name)
                page.screenshot(path=folder / f"{theme}-{size}-{name}.png", full_page="list" not in name)
                wide = page.evaluate(
                    "[document.documentElement, ...document.querySelectorAll('.results')]"
                    ".filter(box => box.scrollWidth > box.clientWidth + 1).length"
                )
                if wide:
                    print(f"{name} scrolls sideways: {theme}, {size}")


def enter(page: Any, name: str) -> None:
    """What an operator enters, up to the preview."""
    page.fill("[name=reason]", "T-4711: seen in the gateway's books")
    if "record" in name:
        page.fill("[name=result]", '{"id": "ch_1"}')
    else:
        page.fill("[name=status]", "409")
        page.fill("[name=body]", '{"detail": "The order was cancelled and the charge refunded."}')
    page.click("input[type=submit]")
    page.wait_for_selector(".idempotency-preview")


def signed_in(browser: Any, url: str, *, sidebar: bool = False, **options: Any) -> Any:
    """A page on the list of keys."""
    page = browser.new_page(base_url=url, **options)
    if not sidebar:
        page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.goto(LIST)
    page.fill("#id_username", "ada")
    page.fill("#id_password", "lovelace")
    page.click("input[type=submit]")
    page.wait_for_selector(".idempotency-overview")
    return page


def pages_of(doubt: IdempotencyKey) -> dict[str, str]:
    """The address of each page, by a name for its picture."""
    keys = IdempotencyKey.objects
    return {
        "list": LIST,
        "attention": f"{LIST}?state=attention",
        "doubt": f"{LIST}{doubt.pk}/change/",
        "record": f"{LIST}{doubt.pk}/record/",
        "answer": f"{LIST}{doubt.pk}/answer/",
        "release": f"{LIST}{doubt.pk}/release/",
        "half-done": f"{LIST}{keys.get(key='c0ffee00-77b1').pk}/change/",
        "completed": f"{LIST}{keys.get(key='0a6e51cd-8842').pk}/change/",
    }


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
    identity = identify(scope="user:auth.User:1", operation="POST orders/", key=key)
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
        updated_at=at,
        expires_at=at + timedelta(days=1),
        **{**known, **fields},
    )


if __name__ == "__main__":
    main()
