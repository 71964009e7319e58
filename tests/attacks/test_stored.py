"""What the table keeps, who may see it, and that nothing a client sends becomes SQL, a header or a line of a log."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib import admin
from django.core.signing import Signer
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from django_idempotency.engine.request.responses import status_url
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.admin_pages import staff

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.attacks.stored_urls")]


def whole_row() -> str:
    """Everything that the table holds, as text."""
    (row,) = IdempotencyKey.objects.values()
    return " ".join(
        bytes(value).decode("latin-1") if isinstance(value, (bytes, memoryview)) else str(value)
        for value in row.values()
    )


class TestStored:
    def test_no_credential_of_the_request_is_stored(self, post: Post) -> None:
        """Headers, cookies, the session's, the body's: hashes stand for them."""
        sent = {
            "Authorization": "Bearer s3cret-token",
            "X-Api-Key": "s3cret-key",
            "Cookie": "sessionid=s3cret-session; other=s3cret-cookie",
        }
        assert post("/create", {"password": "s3cret-password"}, headers=sent).status_code == 200
        assert "s3cret" not in whole_row()
        assert IdempotencyKey.objects.get().scope.startswith("authorization+x-api-key:")

    def test_no_credential_of_the_response_is_stored(self, post: Post) -> None:
        """Neither cookies nor a fresh token; the first caller gets them, a replay does not."""
        first, second = post("/login"), post("/login")
        assert first.headers["Authorization"] == "Bearer s3cret-out"
        assert first.cookies["session"].value == "s3cret-cookie"
        assert "s3cret" not in whole_row()
        assert (second.headers["Idempotency-Replayed"], second.content) == ("true", b"welcome")
        assert {"Authorization", "Set-Cookie"}.isdisjoint(second.headers)
        assert (second.headers["X-Kept"], len(second.cookies)) == ("yes", 0)
        names = [name for name, _ in json.loads(IdempotencyKey.objects.get().headers or "")]
        assert sorted(names) == ["Content-Type", "X-Kept"]  # nothing that a middleware or the package has added


HOSTILE = (
    "';DROP/**/TABLE/**/django_idempotency_idempotencykey;--",
    "%s%(key)s%%",
    "$1){}{0}",
    "\\'\\\\",
    '"quoted"',
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
)


def quoted(text: str) -> str:
    """As the draft's string."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


class TestInjection:
    @pytest.mark.parametrize("text", HOSTILE)
    @pytest.mark.parametrize("path", ["/create", "/by-scope", "/quoted'%22%25s;--"])
    def test_key_scope_and_operation_are_values(self, post: Post, path: str, text: str) -> None:
        """Stored and found as they are; nobody else's row is touched."""
        create_key("bystander")
        answers = [post(path, key=quoted(text), headers={"X-Scope": text}) for _ in range(2)]
        assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
        row = IdempotencyKey.objects.exclude(key="bystander").get()
        assert row.key == text
        assert row.scope == (text if path == "/by-scope" else "anonymous")
        assert IdempotencyKey.objects.count() == 2

    @pytest.mark.parametrize("text", ["a\r\nSet-Cookie:x=1", "a\nb", "a\rb", "a\x00b", "a\x1b[31mb", "a\x85b"])
    def test_a_key_brings_no_line_into_a_log(
        self, post: Post, caplog: pytest.LogCaptureFixture, text: str, settings: Any
    ) -> None:
        """Refused before it is logged, quoted or not; the view under observation runs all the same."""
        for key in (text, quoted(text)):
            assert post("/create", key=key).status_code == 400
            assert post("/observed", key=key).status_code == 200
        assert not IdempotencyKey.objects.exists()
        once = "POST observed runs without protection, because observe is True: each retry runs again."
        logged = [record.getMessage() for record in caplog.records if record.name == "django_idempotency"]
        assert [message for message in logged if message != once] == [
            "Observed: POST observed would have been refused with 400: Idempotency-Key is not valid."
        ] * 2

    @pytest.mark.parametrize("text", HOSTILE)
    def test_no_answer_repeats_the_key(self, post: Post, text: str) -> None:
        """Neither a replay nor a mismatch, in a header or in a body."""
        for body in ({"a": 1}, {"a": 1}, {"a": 2}):
            answer = post("/create", body, key=quoted(text))
            assert text not in answer.content.decode()
            assert all(text not in value for value in answer.headers.values())

    def test_pages_do_not_run_a_key(self, admin_client: Client) -> None:
        """Escaped in the list, on its own page, in a decision's, and in the search field."""
        row = create_key("<script>alert(1)</script>", status="failed")
        name = "admin:django_idempotency_idempotencykey_"
        pages = [
            admin_client.get(reverse(f"{name}changelist"), {"q": row.key}),
            admin_client.get(reverse(f"{name}change", args=[row.pk])),
            admin_client.get(reverse(f"{name}release", args=[row.pk])),
        ]
        for page in pages:
            assert page.status_code == 200
            assert "<script>alert" not in page.content.decode()
            assert "&lt;script&gt;alert(1)" in page.content.decode()


class TestAdmin:
    def pages(self, row: IdempotencyKey) -> list[str]:
        """Every page that the admin has for keys, as Django lists them."""
        names = [url.name for url in admin.site._registry[IdempotencyKey].urls if url.name]
        assert len(names) == 10
        plain = ("_changelist", "_add", "_export")
        return [reverse(f"admin:{name}", args=[] if name.endswith(plain) else [row.pk]) for name in names]

    @pytest.mark.parametrize("permissions", [(), ("view_response",), ("resolve_idempotencykey",), ("add_order",)])
    def test_without_the_view_permission_every_page_is_refused(self, permissions: tuple[str, ...]) -> None:
        """Of a member of the staff, by GET and POST; the key stays as it is."""
        row = create_key("k-secret", status="failed")
        before = IdempotencyKey.objects.values().get()
        client = staff(*permissions)
        for page in self.pages(row):
            for answer in (client.get(page), client.post(page, {"attempt": 1, "status": 200, "content_type": "a/b"})):
                assert answer.status_code == 403, page
                assert "k-secret" not in answer.content.decode()
        assert IdempotencyKey.objects.values().get() == before

    def test_whoever_may_only_look_decides_nothing(self) -> None:
        """403, and the key stays as it is."""
        row = create_key(status="failed")
        before = IdempotencyKey.objects.values().get()
        client = staff("view_idempotencykey", "view_response")
        for decision in ("release", "record", "answer"):
            page = reverse(f"admin:django_idempotency_idempotencykey_{decision}", args=[row.pk])
            assert client.post(page, {"attempt": 1, "status": 200, "content_type": "a/b"}).status_code == 403
        assert IdempotencyKey.objects.values().get() == before


class TestStatusPage:
    @pytest.fixture
    def row(self) -> IdempotencyKey:
        return create_key("k-secret", scope="user:auth.User:7", status="in_progress")

    @pytest.fixture
    def token(self, row: IdempotencyKey) -> str:
        return status_url("default", row.key_hash, row.scope_hash, row.created_at).removeprefix("/status/status/")

    def test_every_changed_character_is_404(self, client: Client, token: str) -> None:
        """Without a statement: the address is checked first."""
        with connection.execute_wrapper(self.no_statement):
            for position in range(len(token)):
                other = "A" if token[position] != "A" else "B"
                changed = token[:position] + other + token[position + 1 :]
                answer = client.get(f"/status/status/{changed}")
                assert (answer.status_code, "no-store" in answer["Cache-Control"]) == (404, True)

    def no_statement(self, execute: Any, sql: str, *args: Any) -> Any:
        raise AssertionError(f"a forged token has reached the database: {sql}")

    def test_only_our_own_address_counts(self, client: Client, row: IdempotencyKey, settings: Any) -> None:
        """Not one that another secret has made, nor one of 0.3.0, nor a part of one, nor any text."""
        address = partial(status_url, "default", row.key_hash, row.scope_hash, row.created_at)
        ours = address().removeprefix("/status/status/")
        with override_settings(SECRET_KEY="another secret"):
            another = address().removeprefix("/status/status/")
        content = ["default", row.key_hash, row.scope_hash, row.created_at.isoformat()]
        older = Signer(salt="django_idempotency.status").sign_object(content)
        with connection.execute_wrapper(self.no_statement):
            for token in (another, older, ours[:-4], ours + "AAAA", ours[:20], "AAAA", "A", ":", "%00", "\u2028"):
                assert client.get(f"/status/status/{token}").status_code == 404, token

    def test_an_address_outlives_a_new_secret_key(self, client: Client, token: str, settings: Any) -> None:
        """As long as the old one is in SECRET_KEY_FALLBACKS, and not longer."""
        old, settings.SECRET_KEY = settings.SECRET_KEY, "a new secret"
        assert client.get(f"/status/status/{token}").status_code == 404
        settings.SECRET_KEY_FALLBACKS = ["an older one", old]
        assert client.get(f"/status/status/{token}").status_code == 200

    def test_neither_key_nor_caller_can_be_found_from_it(self, row: IdempotencyKey, token: str) -> None:
        """Somebody who tries short keys and user numbers finds no hash of theirs in the address."""
        shown = self.decoded(token)
        texts = {shown, shown.hex().encode(), token.encode()}
        for number in (row.key_hash, row.scope_hash):
            bits = number.to_bytes(8, "big", signed=True)
            for trace in (bits, bits[::-1], bits.hex().encode(), str(number).encode()):
                assert not any(trace in text for text in texts)
        rows = [create_key(f"k{i}", status="in_progress") for i in range(2)]
        others = [status_url("default", key.key_hash, key.scope_hash, key.created_at) for key in rows]
        masks = [self.decoded(address.removeprefix("/status/status/")) for address in others]
        differ = bytes(a ^ b for a, b in zip(*masks, strict=True))
        assert (rows[0].key_hash ^ rows[1].key_hash).to_bytes(8, "big", signed=True) not in differ

    def decoded(self, token: str) -> bytes:
        return b"".join(urlsafe_b64decode(part + "==") for part in token.split(":"))

    @pytest.mark.parametrize("gone", ["deleted", "expired", "never there"])
    def test_it_dies_with_its_row(self, client: Client, row: IdempotencyKey, token: str, gone: str) -> None:
        """The same key, claimed anew, is another request: the old address shows nothing of it."""
        names = {"key": row.key, "scope": row.scope, "operation": row.operation}
        if gone == "expired":
            past = row.created_at - timedelta(days=3)
            IdempotencyKey.objects.update(status="completed", created_at=past, expires_at=past)
            token = status_url("default", row.key_hash, row.scope_hash, past).removeprefix("/status/status/")
        else:
            IdempotencyKey.objects.all().delete()
        if gone == "never there":
            token = status_url("default", row.key_hash, row.scope_hash, None).removeprefix("/status/status/")
        assert client.get(f"/status/status/{token}").status_code == 404
        again = create_key(**names, status="completed")
        assert (again.key_hash, again.scope_hash) == (row.key_hash, row.scope_hash)
        assert client.get(f"/status/status/{token}").status_code == 404
        anew = status_url("default", row.key_hash, row.scope_hash, again.created_at)
        assert client.get(anew).json()["status"] == "completed"
