"""The mixin and the decorator in the REST framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, connection, connections
from django.test import Client
from django.test.client import encode_multipart
from django.test.utils import CaptureQueriesContext
from django.utils.decorators import method_decorator
from django.views import View

pytest.importorskip("rest_framework")

from rest_framework.authtoken.models import Token
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.factories import UserFactory
from tests.rest_framework import api_urls
from tests.shopapp.models import Ledger, Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.rest_framework.api_urls")]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    api_urls.CALLS.clear()
    yield
    api_urls.AFTER_ROLLBACK.clear()
    api_urls.OncePerTest.full = False


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    settings_dict = connections["default"].settings_dict
    settings_dict["ATOMIC_REQUESTS"] = True
    yield
    settings_dict["ATOMIC_REQUESTS"] = False


def replayed(response: Any) -> str | None:
    return response.headers.get("Idempotency-Replayed")


def same(first: Any, second: Any) -> bool:
    ignored = {"Idempotency-Replayed"}
    headers = [{k: v for k, v in r.headers.items() if k not in ignored} for r in (first, second)]
    return (first.status_code, first.content, headers[0]) == (second.status_code, second.content, headers[1])


def test_a_viewset_creates_once(post: Post) -> None:
    """The retry gets the same status, bytes and headers."""
    first, second = (post("/orders/", {"reference": "r", "amount": 1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (201, "false", "true")
    assert same(first, second)
    assert Order.objects.count() == 1


def test_it_is_finalized_and_rendered_once_inside_the_transaction(post: Post) -> None:
    """And not at all for a replay."""
    for _ in range(2):
        post("/orders/", {"reference": "r"})
    assert api_urls.CALLS == [("finalize", True), ("render", True)]


def test_a_rejected_body_of_a_serializer_is_kept(post: Post) -> None:
    """400, replayed; another body is a mismatch."""
    first, second = (post("/orders/", {"amount": "x"}) for _ in range(2))
    assert (first.status_code, replayed(second)) == (400, "true")
    assert same(first, second)
    assert post("/orders/", {"amount": 1}).status_code == 422


@pytest.mark.parametrize(
    ("path", "marks"),
    [
        ("/orders/secret/", ["false", "true"]),
        ("/orders/optional/", ["false", "true"]),
        ("/orders/preview/", [None, None]),
    ],
)
def test_actions_have_options_of_their_own(post: Post, path: str, marks: list[Any]) -> None:
    """An Idempotency, a dict, or None for an unprotected action."""
    assert [replayed(post(path)) for _ in range(2)] == marks


def test_action_options_fall_through_to_the_class(post: Post) -> None:
    """The action decides store_body, the class the ttl."""
    post("/orders/secret/")
    row = IdempotencyKey.objects.get()
    assert row.body is None
    assert abs((row.expires_at - row.created_at).total_seconds() - 3600) < 1


def test_a_standard_action_can_be_left_unprotected(client: Client, key: str) -> None:
    """idempotency_actions = {"partial_update": None}."""
    order = Order.objects.create()
    response = client.patch(
        f"/orders/{order.pk}/", {"amount": 5}, content_type="application/json", headers={"Idempotency-Key": key}
    )
    assert (response.status_code, replayed(response)) == (200, None)


def test_other_methods_and_405_pass(client: Client, key: str) -> None:
    """No header where no key was honoured."""
    headers = {"Idempotency-Key": key}
    assert replayed(client.get("/orders/", headers=headers)) is None
    assert replayed(client.options("/orders/", headers=headers)) is None
    response = client.delete("/fails/", headers=headers)
    assert (response.status_code, replayed(response)) == (405, None)


@pytest.mark.parametrize(("error", "status"), [("invalid", 400), ("gone", 404)])
def test_a_final_exception_is_rolled_back_kept_and_replayed(post: Post, error: str, status: int) -> None:
    """What the framework answers counts as the answer; it is asked once."""
    first, second = (post(f"/fails/?error={error}") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (status, "false", "true")
    assert same(first, second)
    assert api_urls.CALLS == ["run", "handled"]
    assert not Order.objects.exists()
    assert Ledger.objects.count() == 1


@pytest.mark.parametrize(("error", "status"), [("denied", 403), ("login", 403), ("throttled", 429), ("server", 500)])
def test_another_exception_is_rolled_back_and_frees_the_key(post: Post, error: str, status: int) -> None:
    """The retry runs."""
    responses = [post(f"/fails/?error={error}") for _ in range(2)]
    assert [(r.status_code, replayed(r)) for r in responses] == [(status, "false")] * 2
    assert api_urls.CALLS == ["run", "handled"] * 2
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


def test_an_unknown_exception_goes_on_and_the_handler_is_asked_once(post: Post) -> None:
    """As without us."""
    with pytest.raises(RuntimeError, match="bug"):
        post("/fails/?error=bug")
    assert api_urls.CALLS == ["run", "handled"]
    assert not Order.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.only_on("postgresql", "mysql")  # on SQLite nobody overtakes a writer
@pytest.mark.django_db(transaction=True)
def test_whoever_completes_the_key_after_the_rollback_is_answered(post: Post, in_threads: Any) -> None:
    """Between rollback and keeping the refusal the key is free: a faster duplicate wins."""

    def overtake() -> None:
        api_urls.AFTER_ROLLBACK.clear()
        in_threads(1, lambda _: post("/fails/?error=invalid", client=Client()))

    api_urls.AFTER_ROLLBACK.append(overtake)
    response = post("/fails/?error=invalid")
    assert (response.status_code, replayed(response)) == (400, "true")
    assert api_urls.CALLS == ["run", "handled", "run", "handled"]
    assert IdempotencyKey.objects.count() == 1


class TestGuarded:
    @pytest.fixture
    def token(self) -> str:
        user = UserFactory(username="ada")
        user.user_permissions.set(Permission.objects.filter(codename="add_order"))
        return str(Token.objects.create(user=user))

    def test_a_replay_never_skips_authentication(self, post: Post, token: str) -> None:
        """A revoked token gets 401, and no header."""
        headers = {"Authorization": f"Token {token}"}
        assert post("/guarded/", headers=headers).status_code == 201
        Token.objects.all().delete()
        response = post("/guarded/", headers=headers)
        assert (response.status_code, replayed(response)) == (401, None)

    def test_a_replay_never_skips_permissions(self, post: Post, token: str) -> None:
        """Nor does a refusal burn the key."""
        headers = {"Authorization": f"Token {token}"}
        user = Token.objects.get().user
        permission = user.user_permissions.get()
        user.user_permissions.clear()
        assert post("/guarded/", headers=headers).status_code == 403
        assert not IdempotencyKey.objects.exists()
        user.user_permissions.add(permission)
        assert replayed(post("/guarded/", headers=headers)) == "false"
        user.user_permissions.clear()
        response = post("/guarded/", headers=headers)
        assert (response.status_code, replayed(response)) == (403, None)

    def test_a_replay_never_skips_throttles(self, post: Post, token: str) -> None:
        """429 does not burn the key either."""
        headers = {"Authorization": f"Token {token}"}
        api_urls.OncePerTest.full = True
        assert post("/guarded/", headers=headers).status_code == 429
        api_urls.OncePerTest.full = False
        assert replayed(post("/guarded/", headers=headers)) == "false"

    def test_the_user_is_the_scope_whatever_the_token(self, post: Post, token: str) -> None:
        """A new token of the same user replays, another user runs."""
        first = post("/guarded/", headers={"Authorization": f"Token {token}"})
        user = Token.objects.get().user
        Token.objects.all().delete()
        second = post("/guarded/", headers={"Authorization": f"Token {Token.objects.create(user=user)}"})
        assert same(first, second)
        bob = UserFactory(username="bob", is_superuser=True)
        third = post("/guarded/", headers={"Authorization": f"Token {Token.objects.create(user=bob)}"})
        assert (third.json()["user"], replayed(third)) == ("bob", "false")

    def test_may_replay_gets_the_view(self, post: Post, token: str) -> None:
        """may_replay(request, view)."""
        headers = {"Authorization": f"Token {token}"}
        post("/guarded/?denied", headers=headers)
        response = post("/guarded/?denied", headers=headers)
        assert (response.status_code, response.json()["title"]) == (403, "Replay is not permitted")


@pytest.mark.parametrize("path", ["/decorated/", "/function/"])
def test_the_decorator_on_handlers_and_below_api_view(post: Post, path: str) -> None:
    """Once, and replayed."""
    first, second = (post(path, {"amount": 1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (201, "false", "true")
    assert same(first, second)
    assert Order.objects.count() == 1


def test_the_decorator_keeps_final_exceptions(post: Post) -> None:
    """As the mixin does."""
    first, second = (post("/function/", {"amount": -1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (400, "false", "true")


@pytest.mark.parametrize(("data", "content_type", "status"), [("{", "application/json", 400), ("x", "text/csv", 415)])
@pytest.mark.parametrize("path", ["/function/", "/raw/?parse"])
def test_an_unreadable_body_claims_nothing(post: Post, path: str, data: str, content_type: str, status: int) -> None:
    """The same key works afterwards with a body that can be read."""
    assert post(path, data, content_type=content_type).status_code == status
    assert not IdempotencyKey.objects.exists()
    assert not Order.objects.exists()
    assert replayed(post(path, {"amount": 1})) == "false"


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_a_handler_can_read_the_raw_body(post: Post, content_type: str) -> None:
    """Whether there is a parser for it or not."""
    for expected in ("false", "true"):
        response = post("/raw/", b"[" + b"1," * 50_000 + b"1]", content_type=content_type)
        assert (response.content, replayed(response)) == (b"100003", expected)
    assert Order.objects.count() == 1


@pytest.mark.parametrize("csrf", [False, True])
def test_uploads_are_compared_by_content(key: str, csrf: bool) -> None:
    """3 MB, a new boundary, another file; also when SessionAuthentication has parsed the form for CSRF."""
    client = Client(enforce_csrf_checks=csrf)
    client.force_login(UserFactory())
    client.cookies["csrftoken"] = token = "a" * 32

    def send(content: bytes, boundary: str) -> Any:
        data = {"csrfmiddlewaretoken": token, "file": SimpleUploadedFile("a.bin", content)}
        return client.post(
            "/upload/",
            encode_multipart(boundary, data),
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": key},
        )

    content = bytes(range(256)) * 12_000
    first, second, third = send(content, "one"), send(content, "two"), send(content[:-1] + b"!", "one")
    assert first.json() == {"file": 3_072_000}
    assert (same(first, second), replayed(second), third.status_code) == (True, "true", 422)


def test_options_can_depend_on_the_request(post: Post) -> None:
    """get_idempotency_options() is asked each time; None leaves the request alone."""
    assert post("/dynamic/", key=None).status_code == 400
    assert replayed(post("/dynamic/?off")) is None
    assert replayed(post("/dynamic/?optional", key=None)) is None
    assert [replayed(post("/dynamic/?optional")) for _ in range(2)] == ["false", "true"]


def test_problems_are_those_of_plain_views(post: Post) -> None:
    """The same body and type."""
    response = post("/function/", key=None)
    assert (response.status_code, response.headers["Content-Type"]) == (400, "application/problem+json")
    assert response.json() == {
        "type": "about:blank",
        "title": "Idempotency-Key is missing",
        "status": 400,
        "detail": "This operation needs the request header Idempotency-Key with a unique value, such as a UUID.",
        "instance": "/function/",
    }


def _project_error(request: Any, problem: Any) -> Any:
    return Response({"error": problem.title}, status=problem.status)


def test_the_projects_own_error_format_may_be_a_response_of_the_framework(post: Post, settings: Any) -> None:
    """It is finalized and rendered as the view's own would be."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": _project_error}
    response = post("/function/", key=None)
    assert (response.status_code, response.json()) == (400, {"error": "Idempotency-Key is missing"})


def test_protected_twice_is_refused(post: Post) -> None:
    """Two layers would wait for each other."""
    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        post("/twice/")


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_the_price_in_statements(post: Post) -> None:
    """Two more than the view's own."""
    with CaptureQueriesContext(connection) as captured:
        post("/function/", {"amount": 1})
    assert [query["sql"].split()[0] for query in captured.captured_queries] == [
        *("BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT")
    ]


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    @pytest.mark.only_on("postgresql", "sqlite")
    @pytest.mark.parametrize("atomic", [False, True])
    def test_a_failing_commit_is_no_201(self, post: Post, atomic: bool, request: pytest.FixtureRequest) -> None:
        """With or without ATOMIC_REQUESTS the mixin's transaction is the outermost."""
        if atomic:
            request.getfixturevalue("atomic_requests")
        with pytest.raises(IntegrityError):
            post("/commit/")
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.usefixtures("atomic_requests")
    def test_unprotected_requests_keep_djangos_transaction(self, client: Client, post: Post) -> None:
        """A safe method and an unprotected request."""
        assert client.get("/orders/state/").json() == {"atomic": True}
        assert post("/dynamic/?off").json()["atomic"] is True

    @pytest.mark.usefixtures("atomic_requests")
    @pytest.mark.parametrize("path", ["/fails/?error=invalid", "/browsable/"])
    def test_a_final_exception_is_kept_under_atomic_requests(self, post: Post, path: str) -> None:
        """The framework's set_rollback() and a renderer that reads the database do no harm."""
        first, second = (post(path) for _ in range(2))
        assert (first.status_code, replayed(first), replayed(second)) == (400, "false", "true")
        assert not Order.objects.exists()

    @pytest.mark.usefixtures("atomic_requests")
    @pytest.mark.parametrize("path", ["/decorated/", "/function/"])
    def test_the_decorator_works_inside_djangos_transaction(self, post: Post, path: str) -> None:
        """As a savepoint."""
        assert [replayed(post(path, {"amount": 1})) for _ in range(2)] == ["false", "true"]
        first, second = (post("/function/", {"amount": -1}, key="other") for _ in range(2))
        assert (first.status_code, replayed(second)) == (400, "true")
        assert Order.objects.count() == 1


class TestRefusals:
    def test_the_mixin_after_the_frameworks_classes(self) -> None:
        """A TypeError when the class is made, with the right order."""
        with pytest.raises(TypeError, match=r"class Wrong\(IdempotencyMixin, …, APIView\)"):
            type("Wrong", (APIView, IdempotencyMixin), {})

    def test_the_mixin_on_a_plain_view(self) -> None:
        """It needs the REST framework's dispatch."""
        with pytest.raises(TypeError, match="not a view of the REST framework"):
            type("Plain", (IdempotencyMixin, View), {})

    def test_impossible_options_of_the_class(self) -> None:
        """They are named when the class is made."""
        with pytest.raises(IdempotencyConfigurationError, match="Did you mean 'ttl'"):
            type("Wrong", (IdempotencyMixin, APIView), {"idempotency": {"tll": 1}})
        with pytest.raises(IdempotencyConfigurationError, match="idempotency option ttl=0"):
            type("Wrong", (IdempotencyMixin, APIView), {"idempotency_actions": {"create": {"ttl": 0}}})

    def test_the_decorator_above_api_view(self) -> None:
        """Refused at decoration, with the right order."""
        with pytest.raises(IdempotencyConfigurationError, match=r'@api_view\(\["POST"\]\)\n    @idempotent'):
            idempotent(api_view(["POST"])(lambda request: Response()))

    def test_the_decorator_around_as_view(self) -> None:
        """Refused at decoration."""
        with pytest.raises(IdempotencyConfigurationError, match="above the REST framework view"):
            idempotent(api_urls.Decorated.as_view())

    def test_the_decorator_on_dispatch(self, rf: Any) -> None:
        """Refused on the first request, before the view runs."""

        @method_decorator(idempotent, name="dispatch")
        class Wrong(APIView):
            def post(self, request: Any) -> Response:
                raise AssertionError("the view ran")

        with pytest.raises(IdempotencyConfigurationError, match="dispatch of the REST framework view Wrong"):
            Wrong.as_view()(rf.post("/", headers={"Idempotency-Key": "k"}))


def test_options_fall_through_the_classes() -> None:
    """Nearest first: action, class, base classes; a None cuts the rest off."""

    class Base(IdempotencyMixin, APIView):
        idempotency = Idempotency(ttl=100, wait=1)

    class Off(Base):
        idempotency = None

    class On(Off):
        idempotency = {"ttl": 200}

    view = Base()
    assert (view.get_idempotency_options().ttl, view.get_idempotency_options().wait) == (100, 1)
    assert Off().get_idempotency_options() is None
    view = On()
    assert (view.get_idempotency_options().ttl, view.get_idempotency_options().wait) == (200, 0)
