"""The page of a key: what it shows to whom, the story, the timeline, the response, and links."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urljoin

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import story
from django_idempotency.admin.decisions import version
from django_idempotency.admin.overview import same_caller, same_key
from django_idempotency.admin.texts import readable_body
from django_idempotency.keys import key_reference
from django_idempotency.maintenance import release_for_retry
from django_idempotency.maintenance.facts import facts_of
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.admin_pages import LIST, detail, make_key, staff
from tests.at_rest import NEW, OLD
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row
from tests.plans import analyze, empty_tables
from tests.step_rows import add_step

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
VIEW, RESOLVE, SECRETS = "view_idempotencykey", "resolve_idempotencykey", "view_response"
NEVER = "never, while it needs attention"
STUCK: dict[str, Any] = {"status": "in_progress", "locked_until": datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)}
EXPIRED = {"expires_at": datetime(2026, 7, 1, tzinfo=UTC)}
HIDDEN = "Encrypted. To see the text, you need the permission “Can view stored response bodies”."


def page_of(key: IdempotencyKey, *permissions: str) -> str:
    return staff(VIEW, *permissions).get(detail(key)).content.decode()


class TestWhoSeesWhat:
    def test_the_response_needs_its_own_permission(self) -> None:
        """A support agent sees that there is a response, not what it says."""
        row = make_key(policy="hold", worker="web-3:4711")
        page = page_of(row)
        assert "POST orders/" in page
        assert "hold: wait for a decision" in page
        assert "web-3:4711" in page
        assert ("total" in page, "application/json" in page) == (False, False)
        assert "Can view stored response bodies" in page
        page = page_of(row, SECRETS)
        assert "&quot;total&quot;:7" in page
        assert "application/json" in page

    def test_the_key_needs_the_permission_for_its_response(self) -> None:
        """Where callers are anonymous, the key gets the response: who may not see one does not see the other."""
        row = make_key("very-secret", scope="anonymous", status="failed", last_error="ValueError")
        assert str(row) == f"POST orders/ {row.reference}"  # which Django's log keeps for ever
        assert row.reference == key_reference("very-secret") == "b644133604bf9963"
        decision = reverse("admin:django_idempotency_idempotencykey_release", args=[row.pk])
        pages = [reverse(LIST), detail(row), decision, f"{reverse(LIST)}?state=failed"]
        history = detail(row).replace("change", "history")
        for permissions, seen in (((), False), ((SECRETS,), True)):
            client = staff(VIEW, RESOLVE, *permissions)
            shown = [client.get(page).content.decode() for page in pages]
            assert ["very-secret" in page for page in shown] == [seen] * 4
            assert seen or all(row.reference in page for page in shown)
            assert "very-secret" not in client.get(history).content.decode()
            found = client.get(reverse(LIST), {"q": "very-secret"}).context["cl"].result_list
            assert [key.pk for key in found] == [row.pk]

    def test_nothing_can_be_changed(self, admin_client: Client) -> None:
        """Not even by a superuser: no add, change or delete."""
        row = make_key()
        assert admin_client.get(reverse("admin:django_idempotency_idempotencykey_add")).status_code == 403
        assert admin_client.post(detail(row), {"key": "x"}).status_code == 403
        assert admin_client.post(detail(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
        assert b"delete_selected" not in admin_client.get(reverse(LIST)).content


class TestResponse:
    def test_bodies_are_escaped(self) -> None:
        """A stored response may hold what a client sent."""
        row = make_key(body=b"<script>alert(1)</script>", headers='[["Content-Type","text/html"]]')
        page = page_of(row, SECRETS)
        assert "<script>alert(1)" not in page
        assert "&lt;script&gt;alert(1)" in page

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b'{"a":[1]}', '{"a":[1]}'),
            (b"{broken", "{broken"),
            (b'{"amount":19.9,"n":[]}', '{"amount":19.9,"n":[]}'),
            (b'{"amount":1.10}', '{"amount":1.10}'),
            (b"[-0]", "[-0]"),
            (b"[" + b"9" * 5000 + b"]", "[" + "9" * 5000 + "]"),
            (b'{"a":{},"a":[]}', '{"a":{},"a":[]}'),
            (b"[" * 21 + b"]" * 21, "[" * 21 + "]" * 21),
            (b'["Gr\\u00fc", "\\ud800"]', '["Gr\\u00fc", "\\ud800"]'),
            (b"7", "7"),
            ("Grüße".encode(), "Grüße"),
            (b"\x89PNG", "4 bytes that are not UTF-8 text"),
            (b"x" * 70000, "x" * 65536 + "\n… (70000 bytes in all)"),
            (b"[" + b"1," * 40000, "[" + "1," * 32767 + "1" + "\n… (80001 bytes in all)"),
        ],
    )
    def test_bodies_are_readable(self, body: bytes, text: str) -> None:
        """As they are stored, cut at 64 KiB."""
        assert readable_body(body) == text

    def test_a_small_body_does_not_become_a_large_page(self) -> None:
        """However its JSON is nested."""
        for body in (b"[" * 9000 + b"]" * 9000, b"[" * 19 + b"1," * 30_000 + b"1" + b"]" * 19):
            assert len(readable_body(body)) < 70_000

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"body": b'["\\ud83d"]'}, "\\ud83d"),
            ({"headers": '[[":reason","\\ud83d"]]'}, "\\ud83d"),
            ({"body": None}, "Not stored."),
            ({"headers": "[broken"}, "This response cannot be read."),
        ],
    )
    def test_what_no_page_can_encode_or_read_is_no_error(self, fields: dict[str, Any], text: str) -> None:
        """Half a surrogate pair, a tombstone, and what was changed in the database."""
        assert text in page_of(make_key(**fields), SECRETS)


def test_another_key_with_the_same_request_about_the_same_resource_is_named() -> None:
    """A client may have taken a new key for a retry, so perhaps the customer has paid twice."""
    same: dict[str, Any] = {"resource_type": "order", "resource_id": "59", "fingerprint": b"f" * 32}
    key, other = make_key("k-1", **same), make_key("k-2", **same)
    make_key("k-3", **same | {"resource_id": "60"})
    make_key("k-4", **same | {"fingerprint": b"g" * 32})
    told = "The same request about the same resource was sent with another key: "
    text = page_of(key)
    assert text.count(told) == 1
    assert f'{told}<a href="{detail(other)}">POST orders/ {other.reference}</a>' in text
    for fields in ({"resource_id": None, "resource_type": None}, {"fingerprint": None}):
        make_key(f"l-{len(fields)}", **same | fields)
        assert told not in page_of(make_key(f"m-{len(fields)}", **same | fields))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"key": "k-2", "fingerprint": b"f" * 32}, "The same caller sent the same request with another key: "),
        ({"key": "k-1", "operation": "POST o/"}, "The same caller sent this key to another operation: "),
        ({"key": "k-2", "fingerprint": b"f" * 32, "scope": "user:auth.User:2"}, ""),
        ({"key": "k-2", "fingerprint": b"g" * 32}, ""),
        ({"key": "k-1", "operation": "POST o/", "scope": "user:auth.User:2"}, ""),
    ],
    ids=["new key", "renamed route", "another caller's request", "another request", "another caller's key"],
)
def test_another_key_that_may_be_the_same_request_is_named(other: dict[str, Any], told: str) -> None:
    """A client took a new key for a retry, or a deploy has renamed the route: perhaps the customer has paid twice."""
    key, found = make_key("k-1", fingerprint=b"f" * 32), make_key(**other)
    text = page_of(key)
    assert text.count("idempotency-warning") == bool(told)
    assert (f'{told}<a href="{detail(found)}">{found}</a>' in text) is bool(told)


def test_strangers_are_not_one_caller() -> None:
    """All callers without credentials share a scope, and send the same requests."""
    shared: dict[str, Any] = {"scope": "anonymous", "fingerprint": b"f" * 32}
    key, _ = make_key("k-1", **shared), make_key("k-2", **shared)
    assert "idempotency-warning" not in page_of(key)


@pytest.mark.only_on("postgresql")
def test_the_warnings_of_a_key_read_a_part_of_a_large_table() -> None:
    """Of one caller with most of the keys, and of one key text that all callers use."""
    empty_tables()
    key = make_key("k-1", fingerprint=b"f" * 32)
    copied = [
        field.attname for field in IdempotencyKey._meta.fields if field.attname not in ("id", "scope_hash", "operation")
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO django_idempotency_idempotencykey (scope_hash, operation, {', '.join(copied)}) "
            f"SELECT i, 'POST old/', {', '.join(copied)} "
            "FROM django_idempotency_idempotencykey, generate_series(1, 8000) i"
        )
    analyze()
    with CaptureQueriesContext(connection) as sent:
        assert len(same_caller(IdempotencyKey.objects.all(), key, near=500)) == 10
        assert len(same_key(IdempotencyKey.objects.all(), key)) == 10
    plans = []
    for query in sent:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + query["sql"])
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
    assert (len(plans), [plan for plan in plans if "Seq Scan" in plan]) == (2, [])
    assert ("Limit" in plans[0], "Limit" in plans[1]) == (True, True)


class TestEncrypted:
    @pytest.fixture(autouse=True)
    def _encrypted(self, settings: Any) -> None:
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}

    def fail_after_the_charge(self, post: Post) -> None:
        """A key with a result, an error of a call, and an error of its own."""
        HOOKS["between"] = lambda operation: operation.call("mail", breaks, operation.derive_key("mail"))
        with pytest.raises(Broken):
            post("/pay")
        HOOKS["between"] = lambda operation: operation.call(
            "mail", str, operation.derive_key("mail")
        )  # what is in doubt must be asked for

    def test_with_the_permission_everything_is_decrypted(self, post: Post) -> None:
        """Body, headers, results and errors. Without it nothing is, errors neither; names of steps are shown."""
        self.fail_after_the_charge(post)
        text = page_of(row(), SECRETS)
        assert GATEWAY.charges[0] in text
        assert text.count("Broken: line 19 of tests.leases.breaks") == 2
        text = page_of(row())
        assert (text.count(HIDDEN), text.count("Broken"), "&quot;charge&quot;" in text) == (2, 0, False)
        assert all(f"<strong>{name}</strong>" in text for name in ("charge", "mail"))
        assert "enc1:" not in text
        post("/pay")
        text = page_of(row(), SECRETS)
        assert "&quot;attempt&quot;: 2" in text
        assert "application/json" in text

    @pytest.mark.parametrize("setting", [{"ENCRYPTION_KEYS": [NEW]}, {}], ids=["another key", "switched off"])
    def test_what_cannot_be_decrypted_says_so(self, post: Post, settings: Any, setting: Any) -> None:
        """In its place: the rest of the page is what an operator needs."""
        self.fail_after_the_charge(post)
        settings.IDEMPOTENCY = setting
        text = page_of(row(), SECRETS)
        assert text.count("IDEMPOTENCY[&#x27;ENCRYPTION_KEYS&#x27;]") == 3
        assert "Whether these calls took effect: mail." in text
        assert "It fails with status 500" in text
        assert "Do not ask the client to retry; put the missing encryption key back." in text
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        post("/pay")
        settings.IDEMPOTENCY = setting
        text = page_of(row(), SECRETS)
        assert "What is stored in &#x27;headers&#x27; of idempotency key" in text
        assert "It fails with status 500" in text
        assert "never forget or release this idempotency key" in text
        assert "It gets the stored response." not in page_of(row(), "view_idempotencykey")
        assert "enc1:" not in text


FAILED: dict[str, Any] = {"status": "failed", "policy": "hold"}
STORIES: list[tuple[dict[str, Any], str, str]] = [
    (
        FAILED,
        "call",
        "Attempt 1 ended without a final … No step has a result. … Whether these calls took effect: s0. … an order "
        f"without a charge. Expires: {NEVER}. … It is refused with 409, and no call … Look it up at the called service",
    ),
    (
        {**STUCK, "policy": "retry", "worker": "web-3:4711"},
        "call",
        "its lease expired at 2026-06-30 20:02:03 CDT (2026-07-01 01:02:03 UTC). … "
        "The view runs again and repeats the calls in doubt. The called service may not recognize a repeated call of "
        "s0: the view had not … First make sure that the worker web-3:4711 (host:process) is dead",
    ),
    (FAILED, "write", "A write ended its own transaction halfway through. … It is refused with 409 until a person de"),
    (FAILED, "call ended", f"These steps finished: s0. … no local write finished … {NEVER} … are not repeated"),
    (FAILED, "call ended, write ended", "These steps finished: s0, s1. … only the response is missing."),
    (STUCK, "", "No step was started, so nothing has happened outside. … No harm done … The view runs again."),
    (
        {"status": "in_progress"},
        "",
        "The view ended its own transaction, then failed or died. … Whatever the view wrote before … How much of "
        f"its work … The key stays as it is, and retries are refused. Expires: {NEVER}. … until a person decides.",
    ),
    (
        {"status": "in_progress", "locked_until": datetime(2999, 1, 1, tzinfo=UTC)},
        "call",
        "A worker is on attempt 1. Its lease runs until … The worker finishes, or a retry takes over once the lease "
        "has expired. … It is told that the request is still being processed.",
    ),
    (
        {"status": "failed", "expires_at": datetime(2999, 7, 1, tzinfo=UTC)},
        "",
        "The key expires at 2999-06-30 19:00:00 CDT (2999-07-01 00:00:00 UTC). … The view runs again.",
    ),
    (
        {"status": "failed", **EXPIRED},
        "write ended",
        "The key expired at 2026-06-30 19:00:00 CDT (2026-07-01 00:00:00 UTC). … Everything runs again, calls and "
        "writes included: the key has expired … The key is no longer kept.",
    ),
    (EXPIRED, "call ended", "The key expired at 2026 … Everything runs again, calls … The key is no longer kept."),
    ({**FAILED, **EXPIRED}, "call ended", f"Expires: {NEVER}. … Finished steps are not repeated"),
    ({**STUCK, **EXPIRED}, "write ended", "No harm done … Finished steps are not repeated"),
    (
        {"status": "failed", "policy": "retry-keyed"},
        "call",
        "Whether these calls took effect: s0. … It is refused with 409, because the called service could not "
        "recognize a repeated call of s0.",
    ),
    (
        {"status": "failed", "policy": "retry-keyed"},
        "call keyed",
        "The view runs again and repeats the calls in doubt, with the same derived keys.",
    ),
    (
        {"status": "failed", "policy": "retry"},
        "call keyed old",
        "The called service may not recognize a repeated call of s0: … or asked so long ago that the key may be "
        "forgotten",
    ),
    (
        {"status": "failed"},
        "call lost",
        "what these calls returned was lost: s0. … fails as soon as it asks for s0. Enter the lost value first.",
    ),
    ({}, "", "The operation finished with status 201. … The response is stored. … It gets the stored response."),
    ({"body": None}, "", "It is told that the operation finished, but that its res … Nothing runs again."),
]


@pytest.mark.parametrize(("fields", "steps", "told"), STORIES)
def test_the_story_of_a_key(fields: dict[str, Any], steps: str, told: str) -> None:
    """What happened, what is certain, what is not, what comes next, and what to do."""
    key, now = make_key(**fields), timezone.now()
    for number, made in enumerate(filter(None, steps.split(", "))):
        kept: dict[str, Any] = {"keyed": "keyed" in made, "started_at": now - timedelta(days=3 * ("old" in made))}
        if "ended" in made or "lost" in made:
            kept |= {"finished_at": now, "result": '{"value": 1}' if "ended" in made else None}
        add_step(key, f"s{number}", made.split()[0], **kept)
    text = "\n".join(map(str, story.story_of(facts_of([key])[0]).values()))
    assert [part for part in told.split(" … ") if part not in text] == []


def test_whether_a_worker_holds_a_key_is_told_by_the_databases_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, an application whose clock is fast would offer decisions about calls that are being made."""
    key, wrong = create_key(status="in_progress"), timezone.now() + timedelta(days=1)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert facts_of([key])[0].live


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_retry_of_an_expired_key_runs_again_as_its_page_says(post: Post, settings: Any, encrypted: bool) -> None:
    """Until the next cleanup, too, and also if what is stored cannot be decrypted."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]} if encrypted else {}
    post("/pay")
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]} if encrypted else {}
    IdempotencyKey.objects.update(**EXPIRED)
    text = page_of(row())
    assert ("Everything runs again" in text, "Nothing runs again" in text) == (True, False)
    assert (post("/pay").status_code, GATEWAY.calls) == (201, 2)


def certain() -> str:
    return story.certain(facts_of([row()], results=True)[0])


def test_a_call_that_has_begun_is_not_nothing(post: Post) -> None:
    """Its worker is in the middle of it; and after a release, its step is gone."""
    seen: list[str] = []
    GATEWAY.before = lambda: seen.append(certain())
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay")
    release_for_retry(row())
    assert [*seen, certain()] == [
        "No step has a result.",
        "No step is recorded. Steps that were in doubt may have been deleted by a decision: see the timeline.",
    ]


@pytest.mark.parametrize("page", ["history", "release"])
def test_a_second_site_leads_to_its_own_pages(operator: Client, in_doubt: IdempotencyKey, page: str) -> None:
    """A project can register the keys in an `AdminSite` of its own, under another address."""
    own = detail(in_doubt).replace("/admin/", "/second/")
    asked = {"seen": version(in_doubt), "reason": "T-7", "confirmed": "on"}
    address = own.replace("/change/", f"/{page}/")
    answer = operator.post(address, asked) if page == "release" else operator.get(address)
    assert (answer.status_code, urljoin(address, answer["Location"])) == (302, own)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_whether_a_key_has_expired_is_for_the_databases_clock_to_say(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the key's state: the worker's clock may be wrong by an hour."""
    key = create_key(status=status)
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(hours=1))
    assert abs(facts_of([key])[0].now - now) < timedelta(minutes=1)
