"""The admin's pages, who may see them, and a key to be seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin.decisions import version
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory
from tests.step_rows import add_step

LIST = "admin:django_idempotency_idempotencykey_changelist"


def make_key(key: str = "k-1", **fields: Any) -> IdempotencyKey:
    scope, operation = fields.get("scope", "user:auth.User:1"), fields.get("operation", "POST orders/")
    identity = identify(scope=scope, operation=operation, key=key, stored=True)
    now = timezone.now()
    return IdempotencyKey.objects.create(
        **{
            "key_hash": identity.key_hash,
            "scope_hash": identity.scope_hash,
            "key": key,
            "scope": identity.scope,
            "operation": identity.operation,
            "status": "completed",
            "status_code": 201,
            "headers": '[["Content-Type","application/json"]]',
            "body": b'{"total":7}',
            "created_at": now,
            "updated_at": now,
            "completed_at": now,
            "expires_at": now + HOUR,
            "last_error": "It broke." if fields.get("status") == "failed" else None,
            **fields,
        }
    )


def staff(*permissions: str) -> Client:
    user: User = UserFactory(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def detail(row: IdempotencyKey) -> str:
    return reverse("admin:django_idempotency_idempotencykey_change", args=[row.pk])


HOUR = timedelta(hours=1)


def step(row: IdempotencyKey, *, finished: bool = False) -> None:
    kept = {"finished_at": timezone.now(), "result": '{"value": "ch_1"}'} if finished else {}
    add_step(row, **kept)


def address(key: IdempotencyKey, decision: str) -> str:
    return reverse(f"admin:django_idempotency_idempotencykey_{decision}", args=[key.pk])


def decide(client: Client, key: IdempotencyKey, decision: str, **data: Any) -> str:
    """Look at the preview, press the button; the text of the page afterwards."""
    given = {
        "reconcile": {},
        "release": {},
        "record": {"step": "charge", "result": '{"charge": "ch_1"}'},
        "answer": {"status": 200, "content_type": "text/plain; charset=utf-8", "body": "refunded by hand"},
    }[decision]
    entered = {"seen": version(key), "reason": "T-7", "confirmed": "on", **given, **data}
    seen = client.post(address(key, decision), entered, follow=True)
    context: Any = seen.context or {}
    if not context.get("previewed"):
        return seen.content.decode()
    return client.post(
        address(key, decision), {**entered, "previewed": context["previewed"]}, follow=True
    ).content.decode()


def page_of(client: Client, key: IdempotencyKey, decision: str) -> str:
    return client.get(address(key, decision)).content.decode()


def preview(client: Client, key: IdempotencyKey, decision: str, **data: Any) -> Any:
    """The page after the first click."""
    return client.post(address(key, decision), {"seen": version(key), "reason": "T-7", "confirmed": "on", **data})


def send(client: Client, action: str, rows: list[IdempotencyKey], **data: Any) -> Any:
    """Tick these keys in the list, and choose the action."""
    ticked = [str(row.pk) for row in rows]
    return client.post(reverse(LIST), {"action": action, "index": "0", "_selected_action": ticked, **data}, follow=True)


def confirm(client: Client, action: str, rows: list[IdempotencyKey], **data: Any) -> Any:
    """Enter the form of the second page, and confirm its preview."""
    given = {"seen": " ".join(map(version, rows)), "reason": "T-7", **data}
    page = send(client, action, rows, **given)
    previewed = (page.context or {}).get("previewed")
    return send(client, action, rows, **given, previewed=previewed) if previewed else page
