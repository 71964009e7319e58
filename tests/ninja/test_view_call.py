"""`idempotent_operation`, with the real Django Ninja."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

pytest.importorskip("ninja")

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.http import replayed, same
from tests.ninja import api_urls
from tests.shopapp.models import Order

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.ninja.api_urls")]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    api_urls.CALLS.clear()
    api_urls.STARTED.clear()
    api_urls.GO.clear()


class TestOutcomes:
    def test_it_runs_once_and_replays_byte_for_byte(self, post: Post) -> None:
        """Status, schema, and the header that was set on the `response` parameter."""
        first, second = (post("/orders", {"reference": "r", "amount": 1}) for _ in range(2))
        order = Order.objects.get()
        assert (first.status_code, first["Location"]) == (201, f"/orders/{order.pk}")
        assert first.json() == {"id": order.pk, "reference": "r", "amount": 1}
        assert (replayed(first), replayed(second)) == ("false", "true")
        assert same(first, second)

    @pytest.mark.filterwarnings("ignore:Returning tuple:DeprecationWarning")
    @pytest.mark.parametrize(("path", "status"), [("/plain", 200), ("/empty", 204), ("/pair", 202), ("/itself", 202)])
    def test_each_kind_of_result_is_converted_as_the_operation_would(self, post: Post, path: str, status: int) -> None:
        """A lazy query, no content, status and value, a response of its own."""
        first, second = (post(path) for _ in range(2))
        assert (first.status_code, replayed(second)) == (status, "true")
        assert same(first, second)
        assert Order.objects.count() == 1

    def test_the_result_is_converted_inside_the_transaction(self, post: Post) -> None:
        """The query of a lazy result stands between the claim and the update that stores it."""
        with CaptureQueriesContext(connection) as queries:
            post("/plain")
        statements = [q["sql"] for q in queries if q["sql"].startswith(("INSERT", "SELECT", "UPDATE"))]
        # Before them the claim, which is more than one statement on MariaDB.
        assert [s.split()[0] for s in statements][-3:] == ["INSERT", "SELECT", "UPDATE"]

    def test_a_streaming_response_leaves_a_tombstone(self, post: Post) -> None:
        """The retry is told so, and nothing runs again."""
        assert [post("/stream").status_code for _ in range(2)] == [200, 409]
        assert Order.objects.count() == 1

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

    def test_the_method_of_the_route_is_protected(self, client: Client, key: str) -> None:
        """PUT, because a PUT route was decorated."""
        marks = [replayed(client.put("/put", headers={"Idempotency-Key": key})) for _ in range(2)]
        assert marks == ["false", "true"]


class TestExceptions:
    @pytest.mark.parametrize(
        ("error", "status", "body"),
        [
            ("402", 402, {"detail": "no funds"}),
            ("422", 422, {"detail": [{"msg": "wrong"}]}),
            ("refused", 402, {"refused": "by the shop"}),
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
        assert api_urls.CALLS.count("run") == 1

    def test_a_handler_that_fails_is_asked_once(self, post: Post) -> None:
        """Its own exception goes on, with its cause and context."""
        with pytest.raises(api_urls.Refused, match="the handler fails") as caught:
            post("/fail?error=hopeless")
        assert api_urls.CALLS == ["run", "handled"]
        assert isinstance(caught.value.__cause__, api_urls.Hopeless)
        assert isinstance(caught.value.__context__, api_urls.Hopeless)

    def test_a_handler_that_raises_the_same_again_is_asked_once(self, post: Post) -> None:
        """While the exception is being handled, as a log wants it."""
        with pytest.raises(api_urls.Logged):
            post("/fail?error=logged")
        assert api_urls.CALLS == ["run", "logged Logged()"]

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
    def send(self, client: Client, path: str, key: str, **headers: str) -> Any:
        return client.post(path, headers={"Idempotency-Key": key, **headers})

    @pytest.mark.parametrize(
        ("path", "header", "values"),
        [
            ("/token", "Authorization", ["Bearer a", "Bearer b"]),
            ("/token", "Authorization", ["Bearer machine1", "Bearer machine2"]),
            ("/key", "X-Shop-Key", ["a", "b"]),  # not one of CREDENTIAL_HEADERS
        ],
    )
    def test_one_key_of_two_callers_is_two_keys(
        self, client: Client, key: str, path: str, header: str, values: list[str]
    ) -> None:
        """Each gets its own order and its own replay."""
        answers = [self.send(client, path, key, **{header: value}) for value in (*values, *values)]
        assert [replayed(a) for a in answers] == ["false", "false", "true", "true"]
        assert answers[0].content == answers[2].content != answers[1].content == answers[3].content

    def test_a_token_is_stored_as_a_hash(self, client: Client, key: str) -> None:
        """The table holds no credential."""
        self.send(client, "/key", key, **{"X-Shop-Key": "secret"})
        scope = IdempotencyKey.objects.get().scope
        assert scope == "auth:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

    def test_a_refused_caller_claims_nothing(self, client: Client, key: str) -> None:
        """Authentication comes first, before a replay too."""
        assert self.send(client, "/token", key, Authorization="Bearer a").status_code == 200
        response = self.send(client, "/token", key, Authorization="Bearer none")
        assert (response.status_code, replayed(response)) == (401, None)

    @pytest.mark.parametrize(("token", "kind"), [("dict", "dict"), ("true", "bool")])
    def test_what_names_nobody_is_refused(self, client: Client, key: str, token: str, kind: str) -> None:
        """Before the operation runs, with the way out."""
        with pytest.raises(IdempotencyConfigurationError, match=f"type '{kind}'.*pass scope=callable"):
            self.send(client, "/token", key, Authorization=f"Bearer {token}")
        assert not Order.objects.exists()

    def test_an_anonymous_user_is_told_by_the_credential(self, client: Client, key: str) -> None:
        """As in a plain view."""
        self.send(client, "/token", key, Authorization="Bearer anonymous")
        assert IdempotencyKey.objects.get().scope.startswith("authorization:")

    def test_scope_decides_if_it_is_given(self, client: Client, key: str) -> None:
        """Whatever the authenticator returned."""
        for token in ("dict", "true"):
            self.send(client, "/scoped", key, Authorization=f"Bearer {token}")
        assert [row.scope for row in IdempotencyKey.objects.all()] == ["one"]


class TestRouters:
    def test_a_decorator_of_the_api_protects_post(self, post: Post) -> None:
        """With the API's options."""
        assert [replayed(post("/decorated/api")) for _ in range(2)] == ["false", "true"]
        assert self.ttl() == 30

    def test_the_options_of_the_router_are_nearer(self, post: Post) -> None:
        """One protection, two layers."""
        assert [replayed(post("/decorated/router/inherits")) for _ in range(2)] == ["false", "true"]
        assert self.ttl() == 60

    def test_the_options_of_the_operation_are_nearest(self, post: Post) -> None:
        """It decides store_body; the router decides the ttl."""
        assert [post("/decorated/router/own").status_code for _ in range(2)] == [200, 409]
        assert self.ttl() == 60

    def test_put_and_get_pass(self, client: Client, key: str) -> None:
        """Nobody has asked for them."""
        headers = {"Idempotency-Key": key}
        assert replayed(client.put("/decorated/router/put", headers=headers)) is None
        assert replayed(client.get("/decorated/router/get", headers=headers)) is None
        assert Order.objects.count() == 2

    def ttl(self) -> int:
        row = IdempotencyKey.objects.get()
        return round((row.expires_at - row.created_at).total_seconds())


class TestAsynchronous:
    def post(self, path: str, key: str, **kwargs: Any) -> Any:
        kwargs = {"data": {}, "content_type": "application/json", **kwargs}
        return async_to_sync(AsyncClient().post)(path, headers={"Idempotency-Key": key}, **kwargs)

    def test_it_runs_once_and_replays(self, key: str) -> None:
        """On the event loop, inside the transaction, with its headers."""
        first, second = (self.post("/async/orders", key, data={"amount": 3}) for _ in range(2))
        assert (first.status_code, first["X-Shop"], first.json()[0]["amount"]) == (201, "async", 3)
        assert (replayed(first), replayed(second)) == ("false", "true")
        assert same(first, second)
        assert Order.objects.count() == 1
