"""What is encrypted at rest, on the pages of the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency.maintenance import release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import decide, detail, staff, step
from tests.at_rest import NEW, OLD
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
HIDDEN = "Encrypted. You need the permission “Can view stored response bodies” to see the text."


@pytest.fixture(autouse=True)
def _encrypted(settings: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    GATEWAY.reset()
    HOOKS.clear()


def page(*permissions: str) -> str:
    return staff("view_idempotencykey", *permissions).get(detail(row())).content.decode()


def fail_after_the_charge(post: Post) -> None:
    """A key with a result, an error of a call, and an error of its own."""

    def refuse(operation: Any) -> None:
        operation.call("mail", breaks)

    HOOKS["between"] = refuse
    with pytest.raises(Broken):
        post("/pay")


def test_with_the_permission_everything_is_decrypted(post: Post) -> None:
    """Body, headers, results and errors."""
    fail_after_the_charge(post)
    text = page("view_response")
    assert GATEWAY.charges[0] in text
    assert text.count("Broken: it broke, token=****") == 2
    HOOKS.clear()
    post("/pay")
    text = page("view_response")
    assert "&quot;attempt&quot;: 2" in text
    assert "application/json" in text


def test_without_the_permission_nothing_is_decrypted(post: Post) -> None:
    """Errors neither, which are plain without encryption. The names of steps are shown."""
    fail_after_the_charge(post)
    text = page()
    assert (text.count(HIDDEN), text.count("it broke"), "&quot;charge&quot;" in text) == (2, 0, False)
    assert all(f"<strong>{name}</strong>" in text for name in ("charge", "mail"))
    assert "enc1:" not in text


def test_errors_of_before_the_setting_are_shown_to_both(post: Post, settings: Any) -> None:
    """As they were: switching encryption on hides no text that is plain in the table."""
    settings.IDEMPOTENCY = {}
    fail_after_the_charge(post)
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    assert [page(*may).count("Broken: it broke") for may in ((), ("view_response",))] == [2, 2]


@pytest.mark.parametrize("setting", [{"ENCRYPTION_KEYS": [NEW]}, {}], ids=["another key", "switched off"])
def test_what_cannot_be_decrypted_says_so(post: Post, settings: Any, setting: Any) -> None:
    """In its place: the rest of the page is what an operator needs."""
    fail_after_the_charge(post)
    settings.IDEMPOTENCY = setting
    text = page("view_response")
    assert text.count("IDEMPOTENCY[&#x27;ENCRYPTION_KEYS&#x27;]") == 3
    assert "Whether these calls took effect: mail." in text
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    HOOKS.clear()
    post("/pay")
    settings.IDEMPOTENCY = setting
    text = page("view_response")
    assert "What is stored in &#x27;headers&#x27; of idempotency key" in text
    assert "enc1:" not in text


@pytest.mark.parametrize("setting", [{"ENCRYPTION_KEYS": [NEW]}, {}], ids=["another key", "switched off"])
@pytest.mark.parametrize("decision", ["record", "answer", "release"])
def test_a_decision_whose_trail_cannot_be_decrypted_says_so(
    operator: Client, in_doubt: IdempotencyKey, settings: Any, setting: Any, decision: str
) -> None:
    """Nothing is changed, and the page of the key is shown."""
    release_for_retry(in_doubt.pk, attempt=in_doubt.attempt)
    IdempotencyStep.objects.filter(key=in_doubt).delete()
    step(in_doubt)
    kept = row().decisions
    settings.IDEMPOTENCY = setting
    assert "What is stored in &#x27;decisions&#x27;" in decide(operator, in_doubt, decision, result="1")
    assert (row().decisions, row().status) == (kept, "failed")
