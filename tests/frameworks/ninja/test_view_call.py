"""`idempotent_operation`, with the real Django Ninja."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, resolve

pytest.importorskip("ninja")

from ninja import File, Form, NinjaAPI, Schema, UploadedFile
from ninja.errors import HttpError, ValidationError
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_idempotency import IdempotencyConfigurationError, run_once
from django_idempotency.keys import caller_scope
from django_idempotency.models import IdempotencyKey
from django_idempotency.ninja import idempotent_operation
from tests.factories import UserFactory
from tests.frameworks.ninja.operations import Status, maker
from tests.http import replayed, same
from tests.shopapp.models import Ledger, Order

Post = Callable[..., Any]
CALLS: list[Any] = []
api = NinjaAPI(urls_namespace="tests", docs_url=None, openapi_url=None)


class OrderIn(Schema):
    reference: str = ""
    amount: int = 0


class OrderOut(Schema):
    id: int
    reference: str
    amount: int


@api.post("/orders", response={201: OrderOut})
@idempotent_operation
def create(request: HttpRequest, payload: OrderIn, response: HttpResponse) -> Any:
    order = Order.objects.create(**payload.dict())
    response["Location"] = f"/orders/{order.pk}"
    return Status(201, order)


@api.post("/plain", response=list[OrderOut])
@idempotent_operation(ttl=3600)
def lazily(request: HttpRequest) -> Any:
    """Its query runs when the result is converted."""
    Order.objects.create()
    return Order.objects.order_by("pk")


@api.post("/empty", response={204: None})
@idempotent_operation
def empty(request: HttpRequest) -> Any:
    Order.objects.create()
    return Status(204, None)


@api.post("/pair", response={202: OrderOut})
@idempotent_operation
def pair(request: HttpRequest) -> Any:
    return 202, Order.objects.create()


@api.post("/form")
@idempotent_operation
def form(request: HttpRequest, amount: Form[int], image: File[UploadedFile]) -> Any:
    return {"id": Order.objects.create(amount=amount).pk, "size": image.size}


@api.post("/mismatched", response=OrderOut)
@idempotent_operation
def mismatched(request: HttpRequest) -> Any:
    """Its result does not fit its schema."""
    Order.objects.create()
    return {"id": "no number"}


api.post("/observed", operation_id="observed")(idempotent_operation(observe=True)(maker()))


@api.post("/observed-busy", response={429: dict[str, str]})
@idempotent_operation(observe=True)
def busy(request: HttpRequest) -> Any:
    return Status(429, {})


api.put("/put", operation_id="put")(idempotent_operation(maker()))


# --- exceptions


class Refused(Exception):
    pass


@api.exception_handler(Refused)
def answer_refused(request: HttpRequest, error: Refused) -> HttpResponse:
    CALLS.append("handled")
    Ledger.objects.create(entry=f"audit {len(CALLS)}")
    return api.create_response(request, {"refused": str(error)}, status=402)


class Hopeless(Exception):
    pass


@api.exception_handler(Hopeless)
def answer_hopeless(request: HttpRequest, error: Hopeless) -> HttpResponse:
    """Raise what another handler could answer: Django Ninja asks one handler only."""
    CALLS.append("handled")
    raise Refused("the handler fails") from error


def swallow() -> Exception:
    """Break the transaction, and hide it."""
    with suppress(IntegrityError):
        Order.objects.create(pk=Order.objects.get().pk)
    return HttpError(402, "after a hidden error")


ERRORS = {
    "422": lambda: ValidationError([{"msg": "wrong"}]),
    "hopeless": Hopeless,
    "bug": lambda: ZeroDivisionError("bug"),
    "swallow": swallow,
}


@api.post("/fail")
@idempotent_operation
def fail(request: HttpRequest, error: str) -> Any:
    Order.objects.create()
    CALLS.append("run")
    make_error = ERRORS[error]
    raise make_error()


# --- callers


class Token(HttpBearer):
    """What it returns is what `request.auth` becomes."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        found = {"dict": {"name": "1"}, "true": True, "anonymous": AnonymousUser(), "none": None}
        return found.get(token, token)


class Key(APIKeyHeader):
    param_name = "X-Shop-Key"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return key


api.post("/token", auth=Token(), operation_id="token")(idempotent_operation(maker()))
api.post("/key", auth=Key(), operation_id="key")(idempotent_operation(maker()))
api.post("/text", auth=[django_auth, Token()], operation_id="text")(idempotent_operation(maker()))
one_time = [lambda request: CALLS.pop() if CALLS else None, Key()]
api.post("/one-time", auth=one_time, operation_id="one_time")(idempotent_operation(maker()))
named_in = [lambda request, header=header: request.headers.get(header) for header in ("Authorization", "X-Shop-Key")]
api.post("/alike", auth=named_in, operation_id="alike")(idempotent_operation(maker()))
api.post("/two", auth=[django_auth, Token(), Key()], operation_id="two")(idempotent_operation(maker()))
versions = {"v1": Token(), "v2": Key(), "v3": Token()}
apis = {name: NinjaAPI(urls_namespace=name, docs_url=None, openapi_url=None, auth=versions[name]) for name in versions}
for version in apis.values():
    version.post("/named", operation_id="named")(idempotent_operation(operation="order")(maker()))


def unprotected(request: HttpRequest) -> str:
    scope, key = caller_scope(request, configured=True), request.headers["Idempotency-Key"]
    return str(run_once(lambda: Order.objects.create().pk, scope=scope, key=key, operation="o").value)


api.post("/unprotected", auth=Key())(unprotected)
urlpatterns = [path("", api.urls), *(path(f"{name}/", version.urls) for name, version in apis.items())]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.ninja.test_view_call")]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def test_a_scope_function_finds_the_caller_of_a_view_that_is_called_directly(rf: Any, settings: Any) -> None:
    """Without a match of the URL, the running operation says that the caller is Ninja's to tell."""
    settings.IDEMPOTENCY = {"SCOPE": lambda request: f"acme:{caller_scope(request)}"}
    view = resolve("/key").func
    for name in ("17", "18"):
        assert view(rf.post("/key", headers={"Idempotency-Key": "k", "X-Shop-Key": name})).status_code == 200
    assert Order.objects.count() == 2


class TestOutcomes:
    @pytest.mark.filterwarnings("ignore:Returning tuple:DeprecationWarning")
    @pytest.mark.parametrize(("path", "status"), [("/orders", 201), ("/plain", 200), ("/empty", 204), ("/pair", 202)])
    def test_each_kind_of_result_is_converted_as_the_operation_would(self, post: Post, path: str, status: int) -> None:
        """A status with a value and a header, a lazy query, no content, and a pair."""
        first, second = (post(path, {"reference": "r", "amount": 1}) for _ in range(2))
        assert (first.status_code, replayed(second)) == (status, "true")
        assert same(first, second)
        order = Order.objects.get()
        if path == "/orders":
            assert first["Location"] == f"/orders/{order.pk}"
            assert first.json() == {"id": order.pk, "reference": "r", "amount": 1}

    def test_the_result_is_converted_inside_the_transaction(self, post: Post) -> None:
        """The query of a lazy result stands between the claim and the update that stores it."""
        with CaptureQueriesContext(connection) as queries:
            post("/plain")
        statements = [q["sql"] for q in queries if q["sql"].startswith(("INSERT", "SELECT", "UPDATE"))]
        # Before them the claim, which is more than one statement on MariaDB.
        assert [s.split()[0] for s in statements][-3:] == ["INSERT", "SELECT", "UPDATE"]

    def test_an_upload_is_compared_by_its_content(self, client: Client, key: str) -> None:
        """A form that Django Ninja has parsed already."""

        def send(content: bytes) -> Any:
            data = {"amount": 1, "image": SimpleUploadedFile("a.png", content)}
            return client.post("/form", data, headers={"Idempotency-Key": key})

        first, second, other = send(b"one"), send(b"one"), send(b"two")
        assert (first.status_code, replayed(second), other.status_code) == (200, "true", 422)
        assert same(first, second)
        assert Order.objects.count() == 1

    def test_parameters_are_parsed_first(self, post: Post) -> None:
        """Django Ninja's own 422 claims no key."""
        response = post("/orders", {"amount": "x"})
        assert (response.status_code, replayed(response)) == (422, None)
        assert post("/orders", {"amount": 1}).status_code == 201

    def test_observed_it_is_judged_by_what_its_result_becomes(self, post: Post, caplog: Any) -> None:
        """Django Ninja converts the result after the package has seen it."""
        assert [post("/observed").json()["id"] for _ in range(2)] == list(Order.objects.values_list("pk", flat=True))
        assert IdempotencyKey.objects.get().status == "completed"
        messages = [record.getMessage().partition("(")[0] for record in caplog.records]
        assert messages[-1:] == ["Observed: POST observed would have been replayed "]
        assert sum("would have been" in message for message in messages) == 1
        assert [post("/observed-busy").status_code for _ in range(2)] == [429, 429]
        assert IdempotencyKey.objects.get(operation="POST observed-busy").status == "failed"

    def test_the_method_of_the_route_is_protected(self, client: Client, key: str) -> None:
        """PUT, because a PUT route was decorated."""
        marks = [replayed(client.put("/put", headers={"Idempotency-Key": key})) for _ in range(2)]
        assert marks == ["false", "true"]


class TestExceptions:
    @pytest.mark.parametrize(
        ("error", "status", "body"),
        [
            ("422", 422, {"detail": [{"msg": "wrong"}]}),
            ("swallow", 402, {"detail": "after a hidden error"}),
        ],
    )
    def test_a_final_answer_is_kept_without_the_writes(self, post: Post, error: str, status: int, body: Any) -> None:
        """Rolled back, answered by the handlers of the API, and replayed."""
        first, second = (post(f"/fail?error={error}") for _ in range(2))
        assert (first.status_code, first.json()) == (status, body)
        assert (replayed(first), replayed(second)) == ("false", "true")
        assert same(first, second)
        assert not Order.objects.exists()
        assert CALLS.count("run") == 1

    def test_a_handler_that_fails_is_asked_once(self, post: Post) -> None:
        """Its own exception goes on, with its cause and context."""
        with pytest.raises(Refused, match="the handler fails") as caught:
            post("/fail?error=hopeless")
        assert CALLS == ["run", "handled"]
        assert isinstance(caught.value.__cause__, Hopeless)
        assert isinstance(caught.value.__context__, Hopeless)

    def test_debug_shows_the_traceback(self, post: Post, settings: Any) -> None:
        """Django Ninja's own answer, a 500 that frees the key."""
        settings.DEBUG = True
        response = post("/fail?error=bug")
        assert (response.status_code, replayed(response)) == (500, "false")
        assert b"ZeroDivisionError" in response.content
        assert not IdempotencyKey.objects.exists()

    def test_a_result_that_does_not_fit_its_schema_is_rolled_back(self, post: Post) -> None:
        """The conversion is part of the transaction."""
        with pytest.raises(ValueError, match="NinjaResponseSchema"):
            post("/mismatched")
        assert not Order.objects.exists()
        assert not IdempotencyKey.objects.exists()


class TestCallers:
    @pytest.fixture
    def send(self, client: Client, key: str) -> Any:
        def send(token: str) -> Any:
            return client.post("/token", headers={"Idempotency-Key": key, "Authorization": f"Bearer {token}"})

        return send

    def test_a_token_is_stored_as_a_hash(self, client: Client, key: str) -> None:
        """The table holds no credential."""
        client.post("/key", headers={"Idempotency-Key": key, "X-Shop-Key": "secret"})
        scope = IdempotencyKey.objects.get().scope
        assert scope == "auth:9504e3045444d31a7b6c0158e97ae0f3d25c76597ab02eeef9a3e49191daf5df"

    def test_a_refused_caller_claims_nothing(self, send: Any) -> None:
        """Authentication comes first, before a replay too."""
        assert send("a").status_code == 200
        response = send("none")
        assert (response.status_code, replayed(response)) == (401, None)

    @pytest.mark.parametrize(("token", "kind"), [("dict", "dict"), ("true", "bool")])
    def test_what_names_nobody_is_refused(self, send: Any, token: str, kind: str) -> None:
        """Before the operation runs, with the way out."""
        with pytest.raises(IdempotencyConfigurationError, match=f"type '{kind}'.*pass scope=callable"):
            send(token)
        assert not Order.objects.exists()

    def test_an_anonymous_user_is_told_by_the_credential(self, send: Any) -> None:
        """As in a plain view."""
        send("anonymous")
        assert IdempotencyKey.objects.get().scope.startswith("authorization:")


class TestTwoAuthenticators:
    @pytest.mark.parametrize(("path", "text"), [("/two", "Bearer 17"), ("/alike", "17")])
    def test_a_text_is_known_by_the_one_that_gave_it(self, client: Client, key: str, path: str, text: str) -> None:
        """User 17 and partner 17 are two callers, and neither gets the other's response. Nor do those of one name."""
        callers = [{"Authorization": text}, {"X-Shop-Key": "17"}] * 2
        answers = [client.post(path, headers={"Idempotency-Key": key, **caller}) for caller in callers]
        assert [replayed(answer) for answer in answers] == ["false", "false", "true", "true"]
        assert Order.objects.count() == 2

    def test_in_two_apis_with_one_operation_it_is_known_by_the_one_that_gave_it(self, client: Client, key: str) -> None:
        """Partner 17 does not get the response of shop 17, and a client of both versions gets its own."""
        shop, partner = {"Authorization": "Bearer 17"}, {"X-Shop-Key": "17"}
        requests = [("/v1/named", shop), ("/v2/named", partner), ("/v3/named", shop)]
        answers = [client.post(path, headers={"Idempotency-Key": key, **caller}) for path, caller in requests]
        assert [replayed(answer) for answer in answers] == ["false", "false", "true"]
        assert Order.objects.count() == 2

    def test_it_is_known_in_an_operation_that_is_not_protected(self, client: Client, key: str) -> None:
        """`run_once` there asks for the caller, whom a gateway's own header doesn't name."""
        gateway = {"Authorization": "Basic Z2F0ZTp3YXk=", "Idempotency-Key": key}
        orders = [client.post("/unprotected", headers={**gateway, "X-Shop-Key": shop}).json() for shop in "aba"]
        assert orders[0] == orders[2] != orders[1]

    def test_a_text_that_none_of_them_gives_twice_is_refused(self, client: Client, key: str) -> None:
        """Before the operation runs, with the ways out."""
        CALLS.append("a token that is good for one use")
        with pytest.raises(IdempotencyConfigurationError) as refused:
            client.post("/one-time", headers={"Idempotency-Key": key})
        assert str(refused.value) == (
            "request.auth is a str, which does not tell which of the 2 authenticators of this operation returned it. "
            "Return a model instance from each authenticator, or pass scope=callable(request)."
        )
        assert not Order.objects.exists()

    def test_a_model_instance_does(self, client: Client, key: str) -> None:
        """The class is a part of its scope."""
        user = UserFactory()
        client.force_login(user)
        answers = [client.post("/two", headers={"Idempotency-Key": key}) for _ in range(2)]
        assert [replayed(answer) for answer in answers] == ["false", "true"]
        assert IdempotencyKey.objects.get().scope == f"user:auth.User:{user.pk}"

    def test_a_text_beside_a_session_tells_who_gave_it(self, client: Client, key: str) -> None:
        """Django Ninja's own authenticators of sessions return a user, never a text."""
        headers = {"Idempotency-Key": key, "Authorization": "Bearer 17"}
        answers = [client.post("/text", headers=headers) for _ in range(2)]
        client.force_login(UserFactory())
        answers.append(client.post("/text", headers={"Idempotency-Key": key}))
        assert [replayed(answer) for answer in answers] == ["false", "true", "false"]
