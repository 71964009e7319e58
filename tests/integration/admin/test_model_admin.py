"""The admin: what it shows to whom, and by which queries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import readable_body
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
LIST = "admin:django_idempotency_idempotencykey_changelist"


def make_key(key: str = "k-1", **fields: Any) -> IdempotencyKey:
    identity = identify(scope="user:auth.User:1", operation="POST orders/", key=key)
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
            "completed_at": now,
            "expires_at": now,
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


def test_without_the_view_permission_nothing_is_shown() -> None:
    """Being staff is not enough."""
    row = make_key()
    assert staff().get(reverse(LIST)).status_code == 403
    assert staff("view_response").get(detail(row)).status_code == 403


def test_the_body_needs_its_own_permission() -> None:
    """A support agent sees that there is a response, not what it says."""
    row = make_key()
    page = staff("view_idempotencykey").get(detail(row)).content.decode()
    assert "k-1" in page
    assert "total" not in page
    assert "Can view stored response bodies" in page
    page = staff("view_idempotencykey", "view_response").get(detail(row)).content.decode()
    assert "&quot;total&quot;: 7" in page
    assert "application/json" in page


def test_nothing_can_be_changed(admin_client: Client) -> None:
    """Not even by a superuser: no add, change, delete or action."""
    row = make_key()
    assert admin_client.get(reverse("admin:django_idempotency_idempotencykey_add")).status_code == 403
    assert admin_client.post(detail(row), {"key": "x"}).status_code == 403
    assert admin_client.post(detail(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert b'name="action"' not in admin_client.get(reverse(LIST)).content


def test_bodies_are_escaped(admin_client: Client) -> None:
    """A stored response is somebody's input."""
    row = make_key(body=b"<script>alert(1)</script>", headers='[["Content-Type","text/html"]]')
    page = admin_client.get(detail(row)).content.decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", b'{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'),
        ("application/problem+json", b"{broken", "{broken"),
        ("application/json", b'{"amount": 1.10,"a":{},"a":[]}', '{\n  "amount": 1.10,\n  "a": {},\n  "a": []\n}'),
        ("application/json", b'["Gr\\u00fc\\u00dfe", "\\ud800", "a\\"]"]', '[\n  "Grüße",\n  "\\ud800",\n  "a\\"]"\n]'),
        ("application/json", b"7", "7"),
        ("text/plain; charset=iso-8859-1", b"Gr\xfc\xdfe", "Grüße"),
        ("text/plain; charset=zlib", b"abc", "abc"),
        ("text/plain; charset=utf-8", "Grüße".encode(), "Grüße"),
        ("image/png", b"\x89PNG", "4 bytes of image/png"),
        ("text/plain", b"x" * 70000, "x" * 65536 + "\n… (70000 bytes in all)"),
        ("application/json", b"[" + b"1," * 40000, "[" + "1," * 32767 + "1" + "\n… (80001 bytes in all)"),
    ],
)
def test_bodies_are_readable(content_type: str, body: bytes, text: str) -> None:
    """By content type, cut at 64 KiB."""
    assert readable_body(IdempotencyKey(headers=f'[["content-type","{content_type}"]]', body=body)) == text


def test_a_small_body_does_not_become_a_large_page() -> None:
    """9,000 brackets indented in full would be 80 MB."""
    row = IdempotencyKey(headers='[["Content-Type","application/json"]]', body=b"[" * 9000 + b"]" * 9000)
    assert len(readable_body(row)) < 70_000


def test_half_a_surrogate_pair_is_no_error(admin_client: Client) -> None:
    """Valid JSON that no page can encode is shown escaped."""
    page = admin_client.get(detail(make_key(body=b'["\\ud83d"]')))
    assert page.status_code == 200
    assert "\\ud83d" in page.content.decode()


@pytest.mark.parametrize("lookup", ["body__startswith", "headers__contains", "key__contains", "status__in", "scope"])
def test_the_address_cannot_ask_what_the_filters_do_not(lookup: str) -> None:
    """Whoever may not see bodies could else guess one, letter by letter."""
    make_key()
    assert staff("view_idempotencykey").get(reverse(LIST), {lookup: "x"}).status_code == 400


@pytest.mark.parametrize("query", [{"o": "1"}, {"o": "-4.2"}, {"_facets": "True"}])
def test_the_address_cannot_ask_for_a_query_over_the_whole_table(
    admin_client: Client, django_assert_max_num_queries: Any, query: dict[str, str]
) -> None:
    """Neither another order nor facets."""
    make_key()
    with django_assert_max_num_queries(12) as captured:
        admin_client.get(reverse(LIST), query)
    asked = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
    assert len(asked) == 2
    for sql in asked:
        assert "FILTER" not in sql
        order = sql.partition("ORDER BY")[2]
        assert order.startswith(
            (" 1 DESC", ' "django_idempotency_idempotencykey"."id" DESC', " `django_idempotency_")
        ), sql
        assert "status" not in order


@pytest.mark.parametrize("term", ["k-7", '"k-7"', " k-7 "])
def test_a_key_is_found_as_the_client_sent_it(admin_client: Client, term: str) -> None:
    """With or without quotes, and exactly."""
    make_key("k-7")
    make_key("k-77")
    result = admin_client.get(reverse(LIST), {"q": term}).context["cl"].result_list
    assert [row.key for row in result] == ["k-7"]


def test_a_key_is_found_by_its_reference_in_the_log(admin_client: Client) -> None:
    """Or by its value, should a key look like a reference."""
    make_key("evt_1")
    make_key("7d4e5a76eae6d8c1")
    found = admin_client.get(reverse(LIST), {"q": "7d4e5a76eae6d8c1"}).context["cl"].result_list
    assert {row.key for row in found} == {"evt_1", "7d4e5a76eae6d8c1"}


def test_something_that_is_no_key_finds_nothing(admin_client: Client) -> None:
    """An impossible key is no error."""
    make_key()
    assert not admin_client.get(reverse(LIST), {"q": "a,b"}).context["cl"].result_list


@pytest.mark.only_on("postgresql")
def test_the_search_uses_the_unique_index(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """EXPLAIN of the list's own query on a filled table."""
    now = timezone.now()
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(
            key_hash=n,
            scope_hash=n,
            scope="s",
            operation="o",
            key=f"k{n}",
            created_at=now,
            expires_at=now,
        )
        for n in range(5000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_idempotency_idempotencykey")
    queryset = admin_client.get(reverse(LIST), {"q": "k7"}).context["cl"].queryset
    assert "idempotency_key_uniq" in queryset.explain()


def test_the_list_never_counts_the_table(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """Every count is over a bounded subquery, every filter over a range of the primary key."""
    make_key()
    for query in ({}, {"status": "completed"}, {"response": "2"}, {"q": "k-1"}):
        with django_assert_max_num_queries(15) as captured:
            response = admin_client.get(reverse(LIST), query)
        assert [row.key for row in response.context["cl"].result_list] == ["k-1"]
        asked = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
        assert asked
        for sql in asked:
            assert "COUNT" not in sql or "LIMIT 2000" in sql or re.search(r'["`]id["`] >', sql), sql
            assert "body" not in sql


def test_pages_end_at_the_limit(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list pages through the newest keys and says no larger number."""
    monkeypatch.setattr("django_idempotency.admin.limits.LISTED", 3)
    monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 2)
    for number in range(5):
        make_key(f"k-{number}")
    changelist = admin_client.get(reverse(LIST)).context["cl"]
    assert changelist.result_count == 3
    assert [row.key for row in changelist.result_list] == ["k-4", "k-3"]
    assert changelist.paginator.num_pages == 2


def test_a_tombstone_says_that_nothing_was_stored(admin_client: Client) -> None:
    """Not an empty body."""
    assert b"Not stored." in admin_client.get(detail(make_key(body=None))).content
