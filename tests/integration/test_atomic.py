"""What becomes of the business write and of the key, whatever a plain view does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, connection, connections
from django.db.models import F
from django.test import Client, RequestFactory, override_settings
from django.test.client import encode_multipart
from django.test.utils import CaptureQueriesContext

from django_idempotency import ClaimLost, IdempotencyConfigurationError, TransactionBroken, idempotent
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory
from tests.integration import view_urls
from tests.shopapp.models import Ledger, Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


@pytest.fixture(autouse=True)
def _no_commits() -> None:
    view_urls.COMMITS.clear()


def replayed(response: Any) -> str | None:
    return response.headers.get("Idempotency-Replayed")


def test_a_retry_gets_the_first_answer(post: Post) -> None:
    """The same status, headers and bytes, one order."""
    first, second = post("/create", {"a": 1}), post("/create", {"a": 1})
    assert (first.status_code, replayed(first)) == (201, "false")
    assert (second.status_code, replayed(second)) == (201, "true")
    assert (first.content, first.headers["Content-Type"]) == (second.content, second.headers["Content-Type"])
    assert Order.objects.count() == 1


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 302, 400, 404, 405, 410, 412, 415, 422, 451])
def test_a_final_answer_is_kept(post: Post, status: int) -> None:
    """Success or refusal: committed once, replayed."""
    first, second = (post(f"/answer?status={status}") for _ in range(2))
    assert (first.status_code, replayed(first)) == (status, "false")
    assert (second.status_code, replayed(second), second.content) == (status, "true", first.content)
    assert Order.objects.count() == 1


@pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 425, 429])
def test_not_now_commits_and_frees_the_key(post: Post, status: int) -> None:
    """A counter of wrong PINs counts, and the retry runs."""
    responses = [post(f"/answer?status={status}") for _ in range(2)]
    assert [replayed(r) for r in responses] == ["false", "false"]
    assert Order.objects.count() == 2
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("status", [500, 502, 503, 599])
def test_a_server_error_rolls_back_and_frees_the_key(post: Post, status: int) -> None:
    """So that a retry starts clean."""
    responses = [post(f"/answer?status={status}") for _ in range(2)]
    assert [(r.status_code, r.content, replayed(r)) for r in responses] == [(status, b"1 orders", "false")] * 2
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


def test_an_exception_rolls_back_and_frees_the_key(post: Post) -> None:
    """Django's own rule."""
    for _ in range(2):
        with pytest.raises(ValueError, match="the view fails"):
            post("/fail")
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_on_commit_runs_once(post: Post) -> None:
    """On the first execution only."""
    for _ in range(3):
        post("/answer?status=200")
    assert view_urls.COMMITS == ["committed"]


@pytest.mark.django_db(transaction=True)
def test_an_error_after_commit_propagates_with_the_key_completed(post: Post) -> None:
    """The order is there, so a retry replays."""
    with pytest.raises(IndexError):
        post("/fail_after_commit")
    assert replayed(post("/fail_after_commit")) == "true"
    assert Order.objects.count() == 1


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.django_db(transaction=True)
def test_a_failing_commit_leaves_nothing(post: Post) -> None:
    """No 201 for an order that did not commit."""
    for _ in range(2):
        with pytest.raises(IntegrityError):
            post("/fail_at_commit")
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("raw", ["", "&raw=1"])
def test_a_hidden_database_error_is_never_a_success(post: Post, raw: str) -> None:
    """A 2xx is not answered for work that did not commit."""
    if raw and connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL aborts the transaction by itself")
    with pytest.raises(TransactionBroken, match=r"with transaction\.atomic\(\)"):
        post(f"/swallow?status=200{raw}")
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("status", [400, 422, 499])
def test_a_refusal_after_a_hidden_database_error_is_kept(post: Post, status: int) -> None:
    """A 4xx may stand without the writes."""
    first, second = (post(f"/swallow?status={status}") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (status, "false", "true")
    assert not Order.objects.exists()


def test_a_server_error_after_a_hidden_database_error_is_passed_on(post: Post) -> None:
    """It rolls back as any 5xx."""
    assert post("/swallow?status=500").status_code == 500
    assert not Order.objects.exists()


def test_a_handled_database_error_commits(post: Post) -> None:
    """The view's own atomic() works inside ours."""
    assert [replayed(post("/handled")) for _ in range(2)] == ["false", "true"]
    assert Ledger.objects.count() == 1


def test_a_view_that_returns_nothing_commits_nothing(post: Post) -> None:
    """Django's own complaint would come too late."""
    with pytest.raises(ValueError, match="didn't return an HttpResponse"):
        post("/nothing")
    assert not Order.objects.exists()


def test_templates_are_rendered_inside_the_transaction(post: Post) -> None:
    """What the template reads belongs to the answer."""
    first, second = post("/template"), post("/template")
    assert first.content == second.content == b"1 in True"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{ "a" :\t1 ,\r\n"b":[ ] }\n\n'),
        ("application/octet-stream", bytes(range(256))),
        ("text/plain; charset=latin-1", "é\x00".encode("latin-1")),
        ("text/plain", b""),
    ],
)
def test_every_byte_is_replayed(post: Post, content_type: str, body: bytes) -> None:
    """Bodies are bytes."""
    first, second = (
        post("/mirror", body, content_type="application/octet-stream", headers={"X-Type": content_type})
        for _ in range(2)
    )
    assert first.content == second.content == body
    assert first.headers["Content-Type"] == second.headers["Content-Type"] == content_type
    assert replayed(second) == "true"


def test_every_header_is_replayed_but_hop_by_hop_ones_and_cookies(post: Post) -> None:
    """RFC 9110 section 7.6.1, and a cookie is a credential."""
    sent = {"ETag": '"1"', "X-Many": "a, b", "Location": "/x", "Connection": "close, X-Hop", "X-Hop": "1", "TE": "gzip"}
    first, second = (post("/mirror", headers={"X-Headers": json.dumps(sent), "X-Reason": "Fine"}) for _ in range(2))
    assert {k: second.headers.get(k) for k in sent} == {
        "ETag": '"1"',
        "X-Many": "a, b",
        "Location": "/x",
        "Connection": None,
        "X-Hop": None,
        "TE": None,
    }
    assert second.reason_phrase == "Fine"
    assert (set(first.cookies), set(second.cookies)) == ({"secret"}, set())


def test_cookies_are_replayed_if_the_project_wants_them(post: Post, settings: Any) -> None:
    """STORE_COOKIES opts in."""
    settings.IDEMPOTENCY = {"STORE_COOKIES": True}
    first, second = post("/mirror"), post("/mirror")
    assert first.cookies["secret"].OutputString() == second.cookies["secret"].OutputString()


def test_an_answer_without_content_type_stays_without(post: Post) -> None:
    """Django's default is not added."""
    first, second = post("/empty"), post("/empty")
    assert (second.status_code, second.content, replayed(second)) == (204, b"", "true")
    assert "Content-Type" not in first.headers
    assert "Content-Type" not in second.headers


@pytest.mark.parametrize(
    ("path", "location"), [("/stream", True), ("/secret", True), ("/too_large", True), ("/download", False)]
)
def test_what_is_not_stored_is_not_run_again(post: Post, path: str, location: bool) -> None:
    """A tombstone: 409, with the first Location."""
    first, second = post(path), post(path)
    assert first.status_code in (200, 201)
    assert (second.status_code, replayed(second)) == (409, "true")
    assert second.json()["title"] == "Idempotency-Key is completed, response not stored"
    assert second.headers.get("Location") == first.headers.get("Location")
    assert ("Location" in second.headers) is location
    assert Order.objects.count() == 1


def test_five_megabytes_are_replayed_if_allowed(post: Post) -> None:
    """max_body_bytes decides."""
    first, second = post("/large"), post("/large")
    assert len(second.content) == 5_000_000
    assert first.content == second.content
    assert replayed(second) == "true"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"data": b'{"a":1,"b":[1.50]}'}, {"data": b'{ "b" : [1.50],\n"a": 1}'}),
        (
            {"data": "a=1&b=2", "content_type": "application/x-www-form-urlencoded"},
            {"data": "b=2&a=1", "content_type": "application/x-www-form-urlencoded; charset=utf-8"},
        ),
        (
            {"data": encode_multipart("one", {"a": "1"}), "content_type": "multipart/form-data; boundary=one"},
            {"data": encode_multipart("two", {"a": "1"}), "content_type": "multipart/form-data; boundary=two"},
        ),
        (
            {"data": "a=1&csrfmiddlewaretoken=x", "content_type": "application/x-www-form-urlencoded"},
            {"data": "a=1&csrfmiddlewaretoken=y", "content_type": "application/x-www-form-urlencoded"},
        ),
    ],
)
def test_equal_payloads_are_replayed(post: Post, first: Any, second: Any) -> None:
    """Order, white space, boundaries and CSRF tokens are no difference."""
    assert [replayed(post("/create", **kwargs)) for kwargs in (first, second)] == ["false", "true"]


@pytest.mark.parametrize(
    "other",
    [
        {"data": b'{"a":2}'},
        {"data": b'{"a":1.0}'},
        {"data": b'{"a":1}', "content_type": "text/plain"},
        {"data": b'{"a":1,"a":1}'},
        {"data": b"{"},
        {"path": "/create?x=1", "data": b'{"a":1}'},
    ],
)
def test_another_request_is_refused(post: Post, other: dict[str, Any]) -> None:
    """422, and nothing runs."""
    post("/create", b'{"a":1}')
    response = post(**{"path": "/create", **other})
    assert (response.status_code, replayed(response)) == (422, "false")
    assert Order.objects.count() == 1


@pytest.mark.parametrize("path", ["/upload", "/upload_own_handlers"])
@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_uploads_work_and_are_compared_by_content(key: str, path: str, csrf_parsed: bool) -> None:
    """3 MB with a new boundary is the same upload, another file is not, even if CSRF has parsed the form before."""
    if csrf_parsed and path == "/upload_own_handlers":
        pytest.skip("Django itself cannot change handlers after CSRF has parsed the form")
    client = Client(enforce_csrf_checks=csrf_parsed)
    client.cookies["csrftoken"] = token = "a" * 32

    def send(content: bytes, boundary: str) -> Any:
        data = {"note": "n", "csrfmiddlewaretoken": token, "file": SimpleUploadedFile("a.bin", content)}
        return client.post(
            path,
            encode_multipart(boundary, data),
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": key},
        )

    content = bytes(range(256)) * 12_000
    first, second, third = send(content, "one"), send(content, "two"), send(content[:-1] + b"!", "one")
    assert first.json() == {"note": "n", "csrfmiddlewaretoken": token, "file": ["a.bin", 3_072_000]}
    assert (second.content, replayed(second)) == (first.content, "true")
    assert third.status_code == 422
    assert Order.objects.count() == 1


@pytest.mark.parametrize("path", ["/read_raw", "/read_body"])
@pytest.mark.parametrize(
    ("content_type", "size"), [("application/octet-stream", 2_000_000), ("application/json", 2_000_000)]
)
def test_views_read_their_bodies_as_ever(post: Post, path: str, content_type: str, size: int) -> None:
    """request.read() and request.body find everything."""
    body = b'"' + b"x" * (size - 2) + b'"'
    for expected in ("false", "true"):
        response = post(path, body, content_type=content_type)
        assert (response.content, replayed(response)) == (b"2000000", expected)


def test_a_large_raw_body_is_no_problem(post: Post) -> None:
    """Django's limit is on request.body, not on request.read()."""
    body = b'{"a": "' + b"x" * 3_000_000 + b'"}'
    assert [post("/read_raw", body).content for _ in range(2)] == [b"3000009"] * 2
    assert post("/read_body", body).status_code == 400  # RequestDataTooBig, as without us


def test_two_users_share_nothing(post: Post) -> None:
    """One key, two users: two orders, and neither sees the other's answer."""
    clients = []
    for name in ("ada", "bob"):
        client = Client()
        client.force_login(UserFactory(username=name))
        clients.append(client)
    answers = [post("/mine", client=client) for client in (*clients, *clients)]
    assert [a.json()["user"] for a in answers] == ["ada", "bob", "ada", "bob"]
    assert [replayed(a) for a in answers] == ["false", "false", "true", "true"]


def test_a_replay_never_skips_the_login(post: Post) -> None:
    """Logged out, the retry is sent to the login page and not marked."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    client.logout()
    response = post("/mine", client=client)
    assert (response.status_code, replayed(response)) == (302, None)


def test_may_replay_is_asked(post: Post) -> None:
    """False answers 403."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    response = post("/mine", client=client, headers={"X-Denied": "1"})
    assert (response.status_code, response.json()["title"]) == (403, "Replay is not permitted")
    assert replayed(post("/mine", client=client)) == "true"


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}, False),
        ({"Authorization": "Bearer a"}, {"Authorization": "bearer  a"}, True),
        ({"Authorization": "Digest a"}, {"Authorization": "Digest b"}, True),
        ({"X-Api-Key": "a"}, {"X-Api-Key": "b"}, False),
        ({"Cookie": "sessionid=a"}, {"Cookie": "sessionid=b"}, False),
        ({"Cookie": "sessionid=a"}, {}, False),
        ({"X-Forwarded-For": "1.2.3.4"}, {"X-Forwarded-For": "5.6.7.8"}, True),
        ({}, {}, True),
    ],
)
def test_anonymous_callers_are_told_apart_by_their_credential(post: Post, one: Any, two: Any, same: bool) -> None:
    """Not by their address."""
    answers = [post("/create", headers=headers, client=Client()) for headers in (one, two)]
    assert [replayed(a) for a in answers] == ["false", "true" if same else "false"]


def test_callers_without_any_credential_can_be_refused(post: Post) -> None:
    """anonymous="refuse" answers 403 and runs nothing."""
    response = post("/known_callers")
    assert (response.status_code, response.json()["title"]) == (403, "Idempotency-Key needs an identified caller")
    assert post("/known_callers", headers={"X-Api-Key": "a"}).status_code == 200
    assert Order.objects.count() == 1


def test_the_project_can_name_the_scope(post: Post) -> None:
    """scope= is all that counts."""
    answers = [post("/tenant", headers={"X-Tenant": tenant}) for tenant in ("a", "b", "a")]
    assert [replayed(a) for a in answers] == ["false", "false", "true"]
    assert set(IdempotencyKey.objects.values_list("scope", flat=True)) == {"a", "b"}
    with pytest.raises(IdempotencyConfigurationError, match="return a non-empty str"):
        post("/tenant", headers={"X-Tenant": ""})


def test_key_and_fingerprint_can_come_from_fields(post: Post) -> None:
    """A hidden form field, and the fields that count."""
    form = "application/x-www-form-urlencoded"
    send = [
        post("/by_field", f"event=e1&amount={a}&note={n}", key=None, content_type=form) for a, n in ("1x", "1y", "2x")
    ]
    assert [(r.status_code, replayed(r)) for r in send] == [(200, "false"), (200, "true"), (422, "false")]


def test_an_expired_key_is_as_if_never_seen(post: Post) -> None:
    """Cleaned up or not, even with another payload."""
    post("/create", {"a": 1})
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
    assert replayed(post("/create", {"a": 2})) == "false"
    assert replayed(post("/create", {"a": 2})) == "true"
    assert Order.objects.count() == 2


def test_without_a_key_the_view_runs_if_the_key_is_optional(post: Post) -> None:
    """And no header promises anything."""
    responses = [post("/optional", key=None) for _ in range(2)]
    assert [replayed(r) for r in responses] == [None, None]
    assert Order.objects.count() == 2


def test_other_methods_pass(client: Client, key: str) -> None:
    """No header, no row."""
    response = client.get("/handlers", headers={"Idempotency-Key": key})
    assert (response.status_code, replayed(response)) == (200, None)
    assert not IdempotencyKey.objects.exists()


def test_it_can_be_switched_off_in_a_test(post: Post, settings: Any) -> None:
    """ENABLED: False."""
    settings.IDEMPOTENCY = {"ENABLED": False}
    assert [replayed(post("/create")) for _ in range(2)] == [None, None]
    assert Order.objects.count() == 2


@pytest.mark.parametrize("path", ["/handlers", "/dispatched"])
def test_class_based_views(post: Post, path: str) -> None:
    """On a handler, or on dispatch by method_decorator."""
    assert [(r.status_code, replayed(r)) for r in (post(path), post(path))] == [(201, "false"), (201, "true")]
    assert Order.objects.count() == 1


def test_a_handler_named_put_protects_put(client: Client, key: str) -> None:
    """Whoever decorates it wants that."""
    responses = [client.put("/handlers", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert [replayed(r) for r in responses] == ["false", "true"]


@pytest.mark.django_db(databases=["default", "other"])
def test_keys_can_live_in_another_database(post: Post) -> None:
    """using= is the alias of the business write."""
    assert [replayed(post("/elsewhere")) for _ in range(2)] == ["false", "true"]
    assert Order.objects.using("other").count() == 1
    assert (IdempotencyKey.objects.count(), IdempotencyKey.objects.using("other").count()) == (0, 1)


def test_the_view_must_leave_the_claim_alone(post: Post, settings: Any) -> None:
    """A deleted claim is an error, not a success."""

    @idempotent
    def vandal(request: Any) -> Any:
        Order.objects.create()
        IdempotencyKey.objects.all().delete()

        return view_urls.HttpResponse()

    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    request.user = AnonymousUser()
    with pytest.raises(ClaimLost):
        vandal(request)
    assert not Order.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_price_in_statements(post: Post) -> None:
    """Two for a first request, two for a duplicate, none for a bad key: beside the view's own."""

    def statements(**kwargs: Any) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            post("/create", **kwargs)
        own = [q["sql"] for q in captured.captured_queries if IdempotencyKey._meta.db_table in q["sql"]]
        return [sql.partition(" FOR ")[2 * sql.startswith("SET STATEMENT")].split()[0] for sql in own]

    assert statements() == ["INSERT", "UPDATE"]
    # MySQL's log leaves out the INSERT, which fails there.
    assert statements() in (["INSERT", "SELECT"], ["SELECT"])
    assert statements(data={"another": "body"}) in (["INSERT", "SELECT"], ["SELECT"])
    assert statements(key="a,b") == []


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_replay_writes_nothing_not_even_a_sequence(post: Post) -> None:
    """No byte of write-ahead log, so it costs no replica and no backup anything."""

    def position() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_insert_lsn()")
            return str(cursor.fetchone()[0])

    def quiet(replays: int) -> bool:
        before = position()
        for _ in range(replays):
            post("/create")
        return position() == before

    post("/create")
    # More replays than a sequence hands out between two log records; the server's own chores may disturb one try.
    assert any(quiet(40) for _ in range(5))


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    settings_dict = connections["default"].settings_dict
    settings_dict["ATOMIC_REQUESTS"] = True
    yield
    settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
class TestAtomicRequests:
    @pytest.mark.parametrize("path", ["/handlers", "/dispatched"])
    def test_an_unprotected_method_keeps_its_transaction(self, client: Client, path: str) -> None:
        """Whether Django opens it or we do."""
        assert client.get(path).json() == {"atomic": True}

    def test_an_optional_key_keeps_the_transaction(self, post: Post) -> None:
        """Passing through is as Django would have done."""
        assert post("/optional", key=None).json()["atomic"] is True

    @pytest.mark.parametrize(("path", "around"), [("/depth", 0), ("/depth_dispatch", 0), ("/depth_handler", 1)])
    def test_our_transaction_is_the_outermost_where_the_mark_reaches(self, post: Post, path: str, around: int) -> None:
        """On a single handler Django's own is around it."""
        assert post(path).json() == {"savepoints": around}

    def test_a_view_that_opted_out_stays_out(self, post: Post) -> None:
        """non_atomic_requests is respected."""
        assert post("/opted_out", key=None).json() == {"atomic": False}

    @pytest.mark.only_on("postgresql", "sqlite")
    def test_a_failing_commit_is_not_answered_with_success(self, post: Post) -> None:
        """We open the outermost transaction, so we see COMMIT fail."""
        with pytest.raises(IntegrityError):
            post("/fail_at_commit")
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.parametrize("path", ["/create", "/handlers", "/dispatched"])
    def test_a_retry_is_replayed(self, post: Post, path: str) -> None:
        """As without ATOMIC_REQUESTS."""
        assert [replayed(post(path)) for _ in range(2)] == ["false", "true"]
        assert Order.objects.count() == 1

    def test_an_exception_rolls_back(self, post: Post) -> None:
        """As without ATOMIC_REQUESTS."""
        with pytest.raises(ValueError, match="the view fails"):
            post("/fail")
        assert not Order.objects.exists()


def test_a_user_without_primary_key_is_refused() -> None:
    """Nobody can tell such users apart."""
    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    request.user = User()
    with pytest.raises(IdempotencyConfigurationError, match="no primary key"):
        view_urls.create(request)


def send_with(**options: Any) -> Callable[..., Any]:
    """Protect a view with these options and post to it directly."""

    @idempotent(scope=lambda request: "s", **options)
    def view(request: Any) -> Any:
        return view_urls.HttpResponse(str(Order.objects.create().pk))

    def send(data: Any = b"{}", content_type: str = "application/json", *, consumed: bool = False) -> Any:
        request = RequestFactory().post("/", data, content_type=content_type, headers={"Idempotency-Key": "k"})
        if consumed:
            request.read()
        return view(request)

    return send


def test_a_fingerprint_of_the_projects_own() -> None:
    """callable(request) -> bytes."""
    send = send_with(fingerprint=lambda request: request.body[:3])
    assert [send(data).status_code for data in (b"abc1", b"abc2", b"x")] == [200, 200, 422]
    assert Order.objects.count() == 1
    with pytest.raises(IdempotencyConfigurationError, match="return bytes"):
        send_with(fingerprint=lambda request: "text")()


def test_a_key_of_the_projects_own_must_be_text() -> None:
    """callable(request) -> str or None."""
    with pytest.raises(IdempotencyConfigurationError, match="return a str or None"):
        send_with(key=lambda request: 5)()
    assert send_with(key=lambda request: "a b")().status_code == 400


def test_chosen_fields_of_a_body_without_fields_are_the_whole_body() -> None:
    """A list, or something that is no JSON."""
    send = send_with(fingerprint=("amount",))
    assert [send(data).status_code for data in (b"[1]", b"[ 1 ]", b"[2]", b"{")] == [200, 200, 422, 422]


def test_chosen_fields_of_json() -> None:
    """Only they count; a missing one is not a null."""
    send = send_with(fingerprint=("amount", "to"))
    bodies = (b'{"amount":1,"note":"a"}', b'{"note":"b","amount":1}', b'{"amount":1,"to":null}')
    assert [send(data).status_code for data in bodies] == [200, 200, 422]


@pytest.mark.parametrize(
    ("content_type", "one", "two"),
    [
        ("application/json", b"[" * 100_000, b"[" * 100_001),
        ("application/json", b'"' + b"x" * 17_000_000 + b'"', b'"' + b"y" * 17_000_000 + b'"'),
        ("application/x-www-form-urlencoded", b"&".join([b"a=1"] * 1001), b"&".join([b"a=1"] * 1002)),
        ("multipart/form-data", b"no boundary", b"no boundary!"),
        ("multipart/form-data; boundary=b", b"--b\r\nnonsense", b"--b\r\nnonsense2"),
    ],
)
def test_what_cannot_be_parsed_is_compared_by_its_bytes(content_type: str, one: bytes, two: bytes) -> None:
    """Deep, huge, too many fields, or malformed: the view decides what it is worth."""
    send = send_with()
    assert [send(data, content_type).status_code for data in (one, one, two)] == [200, 200, 422]


def test_a_body_that_somebody_has_consumed_is_an_error() -> None:
    """It says who may have done it and what to do."""
    with pytest.raises(IdempotencyConfigurationError, match="consumed before the view"):
        send_with()(consumed=True)
    assert send_with(fingerprint=None)(consumed=True).status_code == 200


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_another_alias_is_taken_over_only_if_it_is_atomic(post: Post) -> None:
    """using="other" has no ATOMIC_REQUESTS here, so nothing is to be opened for a request that passes through."""
    assert post("/elsewhere", key=None).status_code == 400
    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        assert post("/elsewhere", key=None).status_code == 201
