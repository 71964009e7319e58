"""One request to a protected handler: its parsers, permissions, exceptions and renderers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.test import Client
from django.test.client import encode_multipart
from django.urls import path

pytest.importorskip("rest_framework")
from rest_framework import parsers, permissions, throttling
from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from django_idempotency import Idempotency
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.factories import UserFactory
from tests.frameworks.rest_framework import api_urls
from tests.frameworks.rest_framework.api_urls import CALLS
from tests.heard import heard
from tests.http import replayed, same
from tests.shopapp.models import Ledger, Order
from tests.views import creates, view_class
from tests.works import commit

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.rest_framework.test_view_call")]
AFTER_ROLLBACK: list[Any] = []
ERRORS = {"invalid": lambda: ValidationError({"amount": ["wrong"]}), "gone": lambda: Http404("gone")}


def fails(request: Any, order: Order) -> Response:
    """Raise what the request names."""
    CALLS.append("run")
    error: Exception = ERRORS[request.query_params["error"]]()
    raise error


def fails_after_commit(request: Any, order: Order) -> Response:
    transaction.on_commit(lambda: get_object_or_404(Ledger, pk=0))
    return Response(status=201)


def refers_and_fails(request: Any, order: Order) -> Response:
    request.idempotency.refer_to("order", order.pk)
    raise ValidationError({"amount": ["wrong"]})


def commits_and_fails(request: Any, order: Order) -> Response:
    commit()
    raise APIException


def audited(view: Any) -> Callable[..., Any]:
    """The project's exception handler: it writes, too."""

    def handler(error: Exception, context: Any) -> Any:
        CALLS.append("handled")
        assert sys.exc_info()[1] is error  # what logger.exception() would show
        Ledger.objects.create(entry=f"audit {len(CALLS)}")
        for hook in AFTER_ROLLBACK:
            hook()
        return exception_handler(error, context)

    return handler


def sizes(request: Any, order: Order) -> Response:
    return Response({name: file.size for name, file in request.FILES.items()})


class OncePerTest(throttling.BaseThrottle):
    full = False

    def allow_request(self, request: Any, view: Any) -> bool:
        return not OncePerTest.full


async def is_allowed(request: Any, view: Any) -> bool:
    if "unknown" in request.query_params:
        raise Http404
    return "denied" not in request.query_params


def protected(view: Any, **attributes: Any) -> Any:
    return view_class(IdempotencyMixin, APIView, post=view, **attributes).as_view()


urlpatterns = [
    *api_urls.urlpatterns,
    path("fails/after/commit/", protected(creates(then=fails_after_commit))),
    path("fails/", protected(creates(then=fails), get_exception_handler=audited)),
    path("refers/", protected(creates(then=refers_and_fails))),
    path("halts/", protected(creates(then=commits_and_fails))),
    path(
        "guarded/",
        protected(
            creates(),
            authentication_classes=[TokenAuthentication],
            permission_classes=[permissions.IsAuthenticated, permissions.DjangoModelPermissions],
            throttle_classes=[OncePerTest],
            queryset=Order.objects.all(),
            idempotency=Idempotency(may_replay=is_allowed),
        ),
    ),
    path(
        "upload/",
        protected(
            creates(then=sizes),
            authentication_classes=[SessionAuthentication],
            parser_classes=[parsers.MultiPartParser, parsers.JSONParser],
        ),
    ),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    CALLS.clear()
    yield
    AFTER_ROLLBACK.clear()
    OncePerTest.full = False


def test_it_is_finalized_and_rendered_once_inside_the_transaction(post: Post) -> None:
    """And not at all for a replay."""
    for _ in range(2):
        post("/orders/", {"reference": "r"})
    assert CALLS == [("finalize", True), ("render", True)]


@pytest.mark.parametrize(("error", "status"), [("invalid", 400), ("gone", 404)])
def test_a_final_exception_is_rolled_back_kept_and_replayed(post: Post, error: str, status: int) -> None:
    """What the framework answers counts as the answer; it is asked once."""
    first, second = (post(f"/fails/?error={error}") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (status, "false", "true")
    assert same(first, second)
    assert CALLS == ["run", "handled"]
    assert not Order.objects.exists()
    assert Ledger.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_what_the_view_referred_to_is_kept_with_its_exception(post: Post) -> None:
    """As with an answer: the admin finds the key by it."""
    with heard("completed") as told:
        assert post("/refers/").status_code == 400
    assert (told[0]["resource"][0], IdempotencyKey.objects.get().resource_type) == ("order", "order")


@pytest.mark.django_db(transaction=True)
def test_an_exception_after_a_commit_in_the_middle_is_told_as_held(post: Post) -> None:
    """And not as released, although the framework has answered it."""
    with heard("held", "released") as told:
        assert [post("/halts/").status_code for _ in range(2)] == [500, 409]
    assert [event["event"] for event in told] == ["held", "held"]


@pytest.mark.django_db(transaction=True)
def test_an_error_after_commit_is_no_answer_of_the_handler(post: Post) -> None:
    """The order is there: the 404 is told, as without us, and not kept."""
    first, retry = (post("/fails/after/commit/") for _ in range(2))
    assert (first.status_code, retry.status_code, replayed(retry)) == (404, 201, "true")
    assert Order.objects.count() == 1


@pytest.mark.only_on("postgresql", "mysql")  # on SQLite nobody overtakes a writer
@pytest.mark.django_db(transaction=True)
def test_whoever_completes_the_key_after_the_rollback_is_answered(post: Post, in_threads: Any) -> None:
    """Between rollback and keeping the refusal the key is free: a faster duplicate wins."""

    def overtake() -> None:
        AFTER_ROLLBACK.clear()
        in_threads(1, lambda _: post("/fails/?error=invalid", client=Client()))

    AFTER_ROLLBACK.append(overtake)
    response = post("/fails/?error=invalid")
    assert (response.status_code, replayed(response)) == (400, "true")
    assert CALLS == ["run", "handled", "run", "handled"]
    assert IdempotencyKey.objects.count() == 1


class TestGuarded:
    @pytest.fixture
    def send(self, post: Post) -> Any:
        """Post with a token of a user who has the permission."""
        user = UserFactory(username="ada")
        user.user_permissions.set(Permission.objects.filter(codename="add_order"))
        headers = {"Authorization": f"Token {Token.objects.create(user=user)}"}

        def send(path: str = "/guarded/") -> tuple[int, str | None]:
            answer = post(path, headers=headers)
            return answer.status_code, replayed(answer)

        return send

    def test_a_replay_never_skips_authentication(self, send: Any) -> None:
        """A revoked token gets 401, and no header."""
        assert send() == (201, "false")
        Token.objects.all().delete()
        assert send() == (401, None)

    def test_a_replay_never_skips_permissions(self, send: Any) -> None:
        """Nor does a refusal burn the key; nor does a throttle."""
        user = Token.objects.get().user
        permission = user.user_permissions.get()
        user.user_permissions.clear()
        assert send() == (403, None)
        user.user_permissions.add(permission)
        OncePerTest.full = True
        assert send() == (429, None)
        assert not IdempotencyKey.objects.exists()
        OncePerTest.full = False
        assert send() == (201, "false")
        OncePerTest.full = True
        assert send() == (429, None)
        user.user_permissions.clear()
        assert send() == (403, None)

    def test_may_replay_gets_the_view(self, send: Any) -> None:
        """may_replay(request, view). A coroutine is awaited."""
        assert [send("/guarded/?denied") for _ in range(2)] == [(201, "false"), (403, "false")]

    def test_an_exception_of_may_replay_is_answered_as_no_replay(self, send: Any) -> None:
        """The key was honoured, so the response says so."""
        assert [send("/guarded/?unknown") for _ in range(2)] == [(201, "false"), (404, "false")]


def test_a_form_that_was_parsed_for_csrf_is_compared_by_content(key: str) -> None:
    """SessionAuthentication has parsed it before the fingerprint is taken. Another boundary is the same request."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(UserFactory())
    client.cookies["csrftoken"] = token = "a" * 32

    def send(content: bytes, boundary: str) -> Any:
        data = {"csrfmiddlewaretoken": token, "file": SimpleUploadedFile("a.bin", content)}
        form, kind = encode_multipart(boundary, data), f"multipart/form-data; boundary={boundary}"
        return client.post("/upload/", form, content_type=kind, headers={"Idempotency-Key": key})

    content = bytes(range(256)) * 12_000
    first, second, third = send(content, "one"), send(content, "two"), send(content[:-1] + b"!", "one")
    assert first.json() == {"file": 3_072_000}
    assert (same(first, second), replayed(second), third.status_code) == (True, "true", 422)


def _project_error(request: Any, problem: Any) -> Any:
    return Response({"error": problem.title}, status=problem.status)


def test_the_projects_own_error_format_may_be_a_response_of_the_framework(post: Post, settings: Any) -> None:
    """It is finalized and rendered as the view's own would be."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": _project_error}
    response = post("/function/", key=None)
    assert (response.status_code, response.json()) == (400, {"error": "Idempotency-Key is missing"})
