"""What a request meets, in this order, before a view runs or its answer is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import Idempotency, IdempotencyConfigurationError, get_operation, idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.views import IdempotencyMixin
from tests.http import posting_to_a_view, problem, replayed, same
from tests.shopapp.models import Order
from tests.views import acreates, creates, paths, view_class

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.kept.test_pipeline")]


def test_callers_without_any_credential_can_be_refused(post: Post) -> None:
    """anonymous="refuse" answers 403 and runs nothing."""
    assert problem(post("/known_callers"))["code"] == "unidentified-caller"
    assert post("/known_callers", headers={"X-Api-Key": "a"}).status_code == 200
    assert Order.objects.count() == 1


def test_the_projects_scope_must_be_text() -> None:
    with pytest.raises(IdempotencyConfigurationError, match="return a non-empty str"):
        posting_to_a_view(scope=lambda request: "")()


@pytest.mark.django_db(transaction=True)
def test_a_protected_view_that_calls_another_is_refused(rf: RequestFactory) -> None:
    """It would meet its own claim; nothing of it stays."""

    @idempotent
    def outer(request: HttpRequest) -> HttpResponse:
        Order.objects.create()
        return idempotent(creates())(request)

    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        outer(rf.post("/", headers={"Idempotency-Key": "k"}))
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_a_key_of_the_projects_own_must_be_text() -> None:
    """`key=` is a callable(request) -> str or None. What a header may hold is in tests/unit/test_key_syntax.py."""
    with pytest.raises(IdempotencyConfigurationError, match="return a str or None"):
        posting_to_a_view(key=lambda request: 5)()
    assert posting_to_a_view(key=lambda request: "a b")().status_code == 400


def test_outside_of_a_protected_view_there_is_no_operation(rf: Any) -> None:
    """And the error of `get_operation` says how to get one."""
    with pytest.raises(IdempotencyConfigurationError, match="Protect the view with"):
        get_operation(rf.post("/"))


# --- how the decorator takes its options


def test_a_handler_named_put_protects_put(client: Client, key: str) -> None:
    """A person who decorates `put` wants PUT to be protected."""
    responses = [client.put("/handlers", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert [replayed(r) for r in responses] == ["false", "true"]


Posts = method_decorator(idempotent(methods=("POST", "PATCH")), name="post")(view_class(post=creates()))


@pytest.mark.parametrize("patch", [Posts.post, lambda self, request: self.post(request)])
def test_a_handler_named_post_protects_the_methods_that_are_named(rf: Any, key: str, patch: Any) -> None:
    """Also under another name, or called by another handler."""
    patched = type("Patched", (Posts,), {"patch": patch})
    answers = [patched.as_view()(rf.patch("/", headers={"Idempotency-Key": key})) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == ["false", "true"]


def test_options_are_given_by_keyword_or_as_one_value() -> None:
    """Not both."""
    with pytest.raises(IdempotencyConfigurationError, match="not both"):
        idempotent(Idempotency(ttl=1), wait=1)
    with pytest.raises(IdempotencyConfigurationError, match="by keyword only"):
        idempotent(creates(), ttl=1)  # type: ignore[call-overload]
    with pytest.raises(IdempotencyConfigurationError, match="Did you mean 'ttl'"):
        idempotent(tll=1)
    assert idempotent(Idempotency(ttl=1))(creates()).__name__ == "create"


def test_it_refuses_something_that_is_no_view() -> None:
    """Without a request there is nothing to protect."""
    with pytest.raises(IdempotencyConfigurationError, match="called without a request"):
        idempotent(lambda: None)()


# --- options that are `async def`


async def is_allowed(request: HttpRequest) -> bool:
    """Asks the database, as a check of a permission would."""
    return "X-Denied" not in request.headers and await Order.objects.aexists()


class Answer:
    async def __call__(self, request: Any) -> Any:
        return "x"


handlers = method_decorator(idempotent, name="put")(view_class(put=creates(200)))


def refers(request: Any, order: Order) -> HttpResponse:
    get_operation(request).refer_to("order", order.pk)
    return HttpResponse(b"{}", content_type="application/json")


urlpatterns = paths(
    refers=idempotent(may_replay=is_allowed)(creates(then=refers)),
    known_callers=idempotent(anonymous="refuse")(creates(200)),
    handlers=handlers.as_view(),
    plain=idempotent(may_replay=is_allowed)(creates()),
    **{"async": idempotent(may_replay=lambda request: is_allowed(request))(acreates())},
)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("url", ["/plain", "/async"])
def test_an_asynchronous_may_replay_is_awaited(client: Client, url: str) -> None:
    """Not awaited, it would show each response to everybody."""

    def send(**headers: str) -> tuple[int, str]:
        answer = client.post(url, headers={"Idempotency-Key": "k", **headers})
        return answer.status_code, answer.headers["Idempotency-Replayed"]

    assert [send(), send(), send(**{"X-Denied": "1"})] == [(201, "false"), (201, "true"), (403, "false")]


@pytest.mark.django_db
def test_whom_may_replay_refuses_is_not_told_what_the_key_is_about(client: Client) -> None:
    """Nor by another body under the same key."""

    def send(body: Any, **headers: str) -> Any:
        headers = {"Idempotency-Key": "k", **headers}
        return client.post("/refers", body, content_type="application/json", headers=headers).json()

    send({})
    assert send({"a": 1})["resource"]["type"] == "order"
    assert (send({"a": 1}, **{"X-Denied": "1"})["code"], "resource" in send({"a": 1}, **{"X-Denied": "1"})) == (
        "already-used",
        False,
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["scope", "key", "record"])
@pytest.mark.parametrize("given", [is_allowed, Answer()])
def test_other_asynchronous_options_are_refused(name: str, given: Callable[..., Any]) -> None:
    """Where they are declared."""
    with pytest.raises(IdempotencyConfigurationError, match=rf"{name}=.*: must be a def function: it is not awaited\."):
        Idempotency(**{name: given})  # type: ignore[arg-type]


# --- a middleware may set the method in lower case: `View.dispatch` takes any case, so the protection does too


ASYNCHRONOUS = method_decorator(idempotent, name="patch")(view_class(patch=acreates()))
MIXIN = view_class(IdempotencyMixin, View, patch=creates())
HANDLER = method_decorator(idempotent, name="patch")(view_class(patch=creates()))
FUNCTION = idempotent(creates())


@pytest.mark.parametrize("view", [MIXIN.as_view(), HANDLER.as_view(), async_to_sync(ASYNCHRONOUS.as_view()), FUNCTION])
def test_a_method_in_lower_case_is_protected(rf: RequestFactory, view: Any) -> None:
    """The retry, in upper case or not, gets the first answer. A safe method passes."""

    def send(method: str) -> Any:
        request = rf.patch("/", headers={"Idempotency-Key": "k"})
        request.method = method
        return view(request)

    answers = [send(method) for method in ("patch", "patch", "PATCH")]
    assert [replayed(answer) for answer in answers] == ["false", "true", "true"]
    assert same(answers[0], answers[2])
    assert IdempotencyKey.objects.get().operation.startswith("PATCH ")
    assert (replayed(send("options")), Order.objects.count()) == (None, 2 if view is FUNCTION else 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["KEY_VALIDATOR", "ERROR_RESPONSE"])
def test_asynchronous_settings_are_refused(client: Client, settings: Any, name: str) -> None:
    """On the first request at the latest."""
    settings.IDEMPOTENCY = {name: is_allowed}
    with pytest.raises(IdempotencyConfigurationError, match=rf"{name}.*: must be a def function: it is not awaited\."):
        client.post("/plain", headers={"Idempotency-Key": "k"})
