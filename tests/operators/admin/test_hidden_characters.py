"""No page of the admin hides or turns round what a client or a gateway has sent."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from django.urls import reverse
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, address, detail, make_key, staff
from tests.step_rows import add_step

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
HIDDEN = "\u202e\u200b\x9b\xad\U000e0041"
SHOWN = r"\u202e\u200b\u009b\u00ad\udb40\udc41"


@pytest.fixture
def key() -> IdempotencyKey:
    row = make_key(
        status="failed",
        body=f"to\t{HIDDEN}\nsender".encode(),
        headers=json.dumps([["X-To", HIDDEN]]),
        resource_type="order",
        resource_id=f"59{HIDDEN}",
        scope="shop\xad7",
        last_error=f"Refused{HIDDEN}",
    )
    result = json.dumps({"value": {"to": HIDDEN}}, ensure_ascii=False)
    add_step(row, finished_at=timezone.now(), result=result)
    return row


def test_what_has_no_width_or_turns_the_text_is_escaped(key: IdempotencyKey) -> None:
    """On the list, on the page of the key and on that of a decision. Lines stay, and a result can be pasted."""
    client = staff("view_idempotencykey", "view_response", "resolve_idempotencykey")
    pages = [unescape(client.get(url).content.decode()) for url in (detail(key), address(key, "answer"), reverse(LIST))]
    for page in pages:
        assert re.findall(f"[{HIDDEN}]", page) == []
        assert r"order 59\u202e" in page
        assert r"shop\u00ad7" in page
    assert f"to\t{SHOWN}\nsender" in pages[0]
    assert f"X-To: {SHOWN}" in pages[0]
    assert f"Refused{SHOWN}" in pages[0]
    for page in pages[:2]:
        (pasted,) = re.findall(r'\{"to": ".+?"\}', page)
        assert json.loads(pasted) == {"to": HIDDEN}


def test_a_preview_shows_what_was_pasted(key: IdempotencyKey) -> None:
    """An answer that was copied from another page may hold what its reader did not see."""
    client = staff("view_idempotencykey", "resolve_idempotencykey")
    page = client.get(address(key, "answer")).content.decode()
    (seen,) = re.findall(r'name="seen" value="(.+?)"', page)
    given = {"status": 200, "content_type": "text/plain; charset=utf-8", "body": f"paid{HIDDEN}", "reason": "T-7"}
    answer = client.post(address(key, "answer"), {"seen": seen, "confirmed": "on", **given})
    assert f"\n\npaid{SHOWN}</pre>" in answer.content.decode()
