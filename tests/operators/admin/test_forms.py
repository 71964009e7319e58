"""What the forms of the decisions promise, which of them a key offers, and which button is red."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_idempotency.maintenance import release_for_retry
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import address, decide, detail, make_key, page_of, preview, send, staff
from tests.at_rest import NEW, OLD
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.leases import Broken, breaks, row
from tests.step_rows import add_step

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
SAME_KEY = "with the same derived key"
UNSENT = (
    "The called service may not recognize a repeated call of charge: the view had not asked for a derived key before "
    "it, or asked so long ago that the key may be forgotten by now."
)
RED = 'class="button idempotency-danger"'


def buttons(page: str) -> list[str]:
    names = ("record", "answer", "release")
    return sorted((name for name in names if f'href="../{name}/"' in page), key=lambda name: page.index(f"../{name}/"))


@pytest.fixture
def doubted(post: Post) -> IdempotencyKey:
    """A call in doubt, after an earlier one of the same operation that has returned an object."""
    assert post("/pay/hold", key="k-1").status_code == 201
    leave_in_doubt(post, key="k-2")
    return IdempotencyKey.objects.get(key="k-2")


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.uncounted
def test_a_derived_key_is_promised_only_if_it_was_sent(operator: Client, keyed: bool) -> None:
    """A release of a call that carried no key is a second charge, and the trail shows no key that nobody has seen."""
    add_step(make_key(status="failed", policy="retry"), keyed=keyed)
    page = page_of(operator, row(), "release")
    assert (SAME_KEY in page, UNSENT in page) == (keyed, not keyed)
    assert ("the called service honours the derived key" in page, "data-copy" in page) == (keyed, keyed)
    told = operator.get(detail(row())).content.decode()
    assert ("calls in doubt, with the same derived keys" in told, "had not asked for a derived key" in told) == (
        keyed,
        not keyed,
    )
    release_for_retry(row())
    assert ("data-copy" in operator.get(detail(row())).content.decode()) is keyed


@pytest.mark.parametrize("policy", ["retry", "retry-keyed", "hold"])
def test_a_derived_key_that_may_be_forgotten_is_not_promised(operator: Client, policy: str) -> None:
    """A release then is a second charge, as "retry-keyed" says by itself."""
    add_step(make_key(status="failed", policy=policy), keyed=True, started_at=timezone.now() - timedelta(days=3))
    page = page_of(operator, row(), "release")
    assert (SAME_KEY in page, UNSENT in page, "honours the derived key" in page) == (False, True, False)
    assert ('name="confirmed"' in page) is (policy != "retry")  # whose retries repeat the call without a release


def test_a_trail_that_does_not_know_whether_the_key_was_sent_shows_none(operator: Client) -> None:
    """The entries of earlier versions."""
    add_step(make_key(status="failed", policy="retry"), keyed=True)
    release_for_retry(row())
    text = row().decisions or ""
    IdempotencyKey.objects.update(decisions=text.replace(', "keyed": true', ""))
    assert ', "keyed": true' in text
    page = operator.get(detail(row())).content.decode()
    assert ("charge (external call, attempt 1)" in page, "data-copy" in page) == (True, False)


@pytest.mark.parametrize(
    ("fields", "step", "offered", "red"),
    [
        ({"status": "failed"}, {}, ["record", "answer", "release"], True),
        ({"status": "failed"}, {"result": '{"value": 1}', "finished_at": timezone.now()}, ["answer"], False),
        ({"status": "failed"}, {"finished_at": timezone.now()}, ["record", "answer"], False),
        ({"status": "failed"}, None, ["answer", "release"], False),
        ({"status": "in_progress"}, None, ["answer", "release"], True),
    ],
    ids=["in doubt", "half done", "value lost", "failed", "without a lease"],
)
def test_a_key_offers_what_helps_and_red_is_what_may_charge_twice(
    operator: Client, fields: dict[str, Any], step: dict[str, Any] | None, offered: list[str], red: bool
) -> None:
    """Of a half-done key, the next retry goes on without a release; a lost value is entered first."""
    key = make_key(**fields)
    if step is not None:
        add_step(key, **step)
    page = operator.get(detail(key)).content.decode()
    assert (buttons(page), RED in page) == (offered, red)
    assert ("Until then every retry fails;" in page) is ("record" in offered and not red)


def test_a_key_that_must_never_be_released_offers_no_release(operator: Client, post: Post, settings: Any) -> None:
    """Its results cannot be decrypted: no red button beside "never forget or release this idempotency key"."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    HOOKS["between"] = lambda operation: operation.call("mail", breaks)
    with pytest.raises(Broken):
        post("/pay")
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    page = operator.get(detail(row())).content.decode()
    assert "never forget or release this idempotency key" in page
    assert (buttons(page), RED in page) == (["record", "answer"], False)


def test_a_decision_about_many_keys_begins_with_their_sum_and_its_button(operator: Client) -> None:
    """A person sees what is decided before the list of the keys, which can be long."""
    rows = [make_key(f"k-{number}", status="failed", operation=f"POST {'ab'[number // 2]}/") for number in range(3)]
    for made in rows:
        add_step(made)
    add_step(rows[0], "mail", result='{"value": 1}', finished_at=timezone.now())
    page = send(operator, "answer_selected", rows).content.decode()
    said = (
        "<h2>3 keys</h2>",
        "2 × POST a/",
        "1 × POST b/",
        "3 × in doubt: charge",
        "1 × finished: mail",
        'type="submit" cl',
    )
    places = [page.index(text) for text in (*said, 'class="idempotency-selected"')]
    assert places == sorted(places)


@pytest.mark.parametrize("alias", ["", "default"])
def test_a_row_that_may_be_on_another_database_than_the_key(settings: Any, alias: str) -> None:
    """Its alias is part of what is entered."""
    settings.DATABASE_ROUTERS = ["tests.routers.OrdersAreOnOther"]
    add_step(make_key(status="failed", policy="hold"))
    client = staff("view_idempotencykey", "resolve_idempotencykey", "view_order")
    using = f', "using": "{alias}"' if alias else ""
    page = decide(client, row(), "record", result=f'{{"model": "shopapp.Order", "pk": 1{using}}}')
    told = "The key is in the database “default”, but shopapp.Order is written to “other”."
    assert (told in page, "There is no shopapp.Order" in page) == (not alias, bool(alias))


@pytest.mark.parametrize("permissions", [("view_response",), ()])
def test_a_result_of_another_shape_is_asked_about_again(doubted: IdempotencyKey, permissions: tuple[str, ...]) -> None:
    """`"ch_1"` in place of the object that the call returns. The names in results are shown to those who may."""
    key, client = doubted, staff("view_idempotencykey", "resolve_idempotencykey", *permissions)
    entered = {"step": "charge", "result": '"ch_1"'}
    assert b'name="readable"' not in client.get(address(key, "record")).content
    page = preview(client, key, "record", **entered)
    asked = page.content.decode()
    assert (page.context["previewed"], 'type="checkbox" name="readable"' in asked) == ("", True)
    assert ("earlier results were object (charge)" in asked) == ("view_response" in permissions)
    assert "Recorded the outcome" not in decide(client, key, "record", **entered)
    assert 'name="readable"' not in decide(client, key, "record", **entered | {"result": "{"})  # no JSON
    assert not key.steps.exclude(finished_at=None).filter(name="charge").exists()
    assert "Recorded the outcome" in decide(client, key, "record", **entered, readable="on")
    assert key.steps.get(name="charge").result == '{"value": "ch_1"}'


def test_a_result_like_an_earlier_one_is_not_asked_about(doubted: IdempotencyKey, operator: Client) -> None:
    """Nor is a box shown whose answer would mean nothing."""
    given = {"step": "charge", "result": '{"charge": "ch_2"}'}
    assert b'name="readable"' not in preview(operator, doubted, "record", **given).content
    assert "Recorded the outcome" in decide(operator, doubted, "record", **given)
