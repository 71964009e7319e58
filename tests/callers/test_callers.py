"""Two callers, one key: nobody gets, or learns of, what belongs to somebody else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.middleware import RemoteUserMiddleware
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError, run_once
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import scope_of
from django_idempotency.keys import caller_scope
from django_idempotency.maintenance.erasure import forget, forget_scope
from django_idempotency.models import IdempotencyKey
from tests.callers import caller_urls
from tests.factories import UserFactory
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.caller_urls")]
Send = Callable[..., Any]
"""Send the test's key as one caller."""


class ForwardedUserMiddleware(RemoteUserMiddleware):
    """As Django documents it for a proxy that authenticates."""

    header = "HTTP_X_FORWARDED_USER"


def awaited_user(get_response: Any) -> Any:
    """A middleware that sets no more than what Django's own asynchronous decorators ask for."""

    def middleware(request: Any) -> Any:
        async def auser() -> Any:
            return (await User.objects.aget_or_create(username=name))[0]

        if name := request.headers.get("X-Awaited-User"):
            request.auser = auser
        return get_response(request)

    return middleware


@pytest.fixture(autouse=True)
def _fresh() -> None:
    caller_urls.RUNS.clear()


def sender(path: str, **environ: str) -> Send:
    client = Client()

    def send(key: str = "k", **more: Any) -> Any:
        return client.post(path, **{"content_type": "application/json", **environ, **more}, HTTP_IDEMPOTENCY_KEY=key)

    return send


def by_header(path: str, name: str, template: str = "{}", **environ: str) -> Callable[[str], Send]:
    return lambda who: sender(path, **environ, **{name: template.format(who)})


def by_session(path: str) -> Callable[[str], Send]:
    def make(who: str) -> Send:
        client = Client()
        client.force_login(UserFactory(username=who))
        return sender(path, HTTP_COOKIE=f"sessionid={client.cookies['sessionid'].value}")

    return make


def basic(who: str) -> Send:
    user = UserFactory(username=who)
    user.set_password(who)
    user.save()
    return sender("/rest/basic", HTTP_AUTHORIZATION=f"Basic {b64encode(f'{who}:{who}'.encode()).decode()}")


def token(who: str) -> Send:
    from rest_framework.authtoken.models import Token

    return sender("/rest/token", HTTP_AUTHORIZATION=f"Token {Token.objects.create(user=UserFactory(username=who))}")


WAYS: dict[str, Callable[[str], Send]] = {
    "session": by_session("/plain"),
    "anonymous session": by_header("/plain", "HTTP_COOKIE", "sessionid={}"),
    "Basic": by_header("/plain", "HTTP_AUTHORIZATION", "Basic {}"),
    "Bearer": by_header("/plain", "HTTP_AUTHORIZATION", "Bearer {}"),
    "Token": by_header("/plain", "HTTP_AUTHORIZATION", "Token {}"),
    "Api-Key": by_header("/plain", "HTTP_AUTHORIZATION", "Api-Key {}"),
    "X-Api-Key": by_header("/plain", "HTTP_X_API_KEY"),
    # A gateway in front sends the same Authorization for everybody.
    "X-Api-Key behind a gateway": by_header("/plain", "HTTP_X_API_KEY", HTTP_AUTHORIZATION="Basic Z2F0ZXdheQ=="),
    "REMOTE_USER": by_header("/plain", "REMOTE_USER"),
    "request.auser": by_header("/awaited", "HTTP_X_AWAITED_USER"),
    "X-Forwarded-User": by_header("/plain", "HTTP_X_FORWARDED_USER"),
}
if REST_FRAMEWORK_INSTALLED:
    WAYS |= {
        "REST framework, session": by_session("/rest/session"),
        "REST framework, Basic": basic,
        "REST framework, Token": token,
        "REST framework, a key in request.auth": by_header("/rest/key", "HTTP_X_SHOP_KEY"),
        "REST framework, a model in request.auth": by_header("/rest/model", "HTTP_X_SHOP_KEY"),
    }
if caller_urls.NINJA_INSTALLED:
    WAYS |= {
        "Ninja, session": by_session("/ninja/session"),
        "Ninja, Bearer": by_header("/ninja/bearer", "HTTP_AUTHORIZATION", "Bearer {}"),
        "Ninja, two clients of one user": lambda who: sender(
            "/ninja/member", HTTP_AUTHORIZATION=f"Bearer {caller_urls.jwt(who)}"
        ),
        "Ninja, a key of its own": by_header("/ninja/key", "HTTP_X_SHOP_KEY"),
    }
PROXIES = {
    "REMOTE_USER": "django.contrib.auth.middleware.RemoteUserMiddleware",
    "X-Forwarded-User": "tests.callers.test_callers.ForwardedUserMiddleware",
}


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest, settings: Any) -> tuple[Send, Send]:
    """Alice and Bob, who call in the same way."""
    if request.param in PROXIES:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, PROXIES[request.param]]
        settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.RemoteUserBackend"]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.callers.test_callers.awaited_user"]
    make = WAYS[request.param]
    alice, bob = make("alice"), make("bob")
    for send in (alice, bob):
        send("before")  # a proxy's user is made on the first request
    return alice, bob


def told(response: Any) -> tuple[int, str, str]:
    return response.status_code, response.json().get("secret", ""), response.headers["Idempotency-Replayed"]


@pytest.mark.parametrize("setting", [{}, {"SCOPE": caller_urls.tenant_and_caller}], ids=["default", "a tenant's"])
def test_c31_one_key_of_two_callers_is_two_rows_and_no_leak(
    pair: tuple[Send, Send], settings: Any, setting: dict[str, Any]
) -> None:
    """Each runs once and is replayed its own answer, also under a project's scope that starts from caller_scope."""
    settings.IDEMPOTENCY = setting
    alice, bob = pair
    answers = [told(send()) for send in (alice, bob, alice, bob)]
    assert answers == [
        (200, "of run 3", "false"),
        (200, "of run 4", "false"),
        (200, "of run 3", "true"),
        (200, "of run 4", "true"),
    ]
    assert len(set(IdempotencyKey.objects.filter(key="k").values_list("scope", flat=True))) == 2


def observed(send: Send, key: str, **more: Any) -> Any:
    """All that a caller can measure but the clock, and what takes the time."""
    with CaptureQueriesContext(connection) as queries:
        answer = send(key, **more)
    names = sorted(set(answer.headers) - {"Set-Cookie"})
    return answer.status_code, names, len(answer.content), [query["sql"].split()[0] for query in queries]


def test_c33_nobody_can_tell_whether_somebody_else_has_used_a_key(pair: tuple[Send, Send]) -> None:
    """The same answer after the same statements, for Alice's key as for a new one, whatever the body."""
    alice, bob = pair
    for key in ("done", "other-body"):
        assert told(alice(key, data={"amount": 1}))[2] == "false"
    untouched = observed(bob, "new", data={"amount": 1})
    assert observed(bob, "done", data={"amount": 1}) == untouched
    assert observed(bob, "other-body", data={"amount": 2}) == untouched


def test_c33_nobody_can_tell_whether_somebody_else_is_using_a_key(pair: tuple[Send, Send]) -> None:
    """While Alice's request is running Bob's is no conflict; Alice's own duplicate is."""
    alice, bob = pair
    alice("running")
    later = timezone.now() + timedelta(hours=1)
    IdempotencyKey.objects.filter(key="running").update(status="in_progress", locked_until=later, completed_at=None)
    assert alice("running").status_code == 409
    assert observed(bob, "running") == observed(bob, "new")


@pytest.mark.skipif(not REST_FRAMEWORK_INSTALLED, reason="about the REST framework")
@pytest.mark.parametrize(
    ("path", "key", "message"),
    [
        ("/rest/claims", "alice", r"request\.auth is of type 'dict', which does not tell"),
        ("/rest/key", "", r"request\.auth is of type 'str', which does not tell"),
        ("/rest/nameless", "alice", r"request\.user is of type 'object', which has no is_auth"),
    ],
)
def test_an_authenticated_caller_whom_nothing_tells_apart_is_refused(path: str, key: str, message: str) -> None:
    """And does not fall into the scope of all anonymous callers."""
    with pytest.raises(IdempotencyConfigurationError, match=f"{message}.*scope=callable"):
        sender(path, HTTP_X_SHOP_KEY=key)()
    assert caller_urls.RUNS == []


@pytest.mark.skipif(not REST_FRAMEWORK_INSTALLED, reason="about the REST framework")
def test_without_its_key_such_a_view_has_anonymous_callers(settings: Any) -> None:
    """No authenticator has found anybody, whatever the project puts into `request.auth` then."""
    settings.REST_FRAMEWORK = {"UNAUTHENTICATED_TOKEN": object}
    assert told(sender("/rest/claims")()) == (200, "of run 1", "false")
    assert IdempotencyKey.objects.get().scope == "anonymous"


@pytest.mark.parametrize("tenant", ["a%00b", "a%0D%0ASet-Cookie:%20x=1", "%E2%80%A8", "x" * 256, "a%1b[31m"])
def test_a_scope_made_of_what_a_client_sent_is_stored_as_a_hash(tenant: str) -> None:
    """NUL would be a database error, and line breaks would forge lines in logs; the replay works as ever."""
    send = sender(f"/tenant?tenant={tenant}")
    assert [told(send())[2] for _ in range(2)] == ["false", "true"]
    scope = IdempotencyKey.objects.get().scope
    assert scope.startswith("scope:")
    assert len(scope) == 6 + 64
    assert told(sender("/tenant?tenant=other")())[2] == "false"


@pytest.mark.parametrize("scope", ["a\x00b", "a\r\nb", "\ud800", "a\u202eb", "x" * 256])
def test_a_scope_without_http_is_stored_as_a_hash_too(scope: str) -> None:
    """`run_once` and `forget` are given it as it is; the admin shows its hash, which is as good."""
    work: Any = {"work": lambda: 1, "operation": "o", "scope": scope, "key": "k"}
    assert [run_once(**work).replayed for _ in range(2)] == [False, True]
    stored = IdempotencyKey.objects.get().scope
    assert stored.startswith("scope:")
    assert forget(scope, "k").deleted == 1
    run_once(**work)
    assert forget_scope(scope).deleted == 1
    run_once(**work)
    assert forget(stored, "k").deleted == 1


def test_two_credentials_are_not_one_long_one(rf: RequestFactory) -> None:
    """Where one header ends and the next begins is part of who is calling. A name in Basic may be no text."""
    pairs = (("Bearer ab", "c"), ("Bearer a", "bc"), ("Bearer abc", ""), ("Basic /w==", ""))
    requests = [rf.post("/", HTTP_AUTHORIZATION=first, HTTP_X_API_KEY=second) for first, second in pairs]
    assert len({scope_of(request, resolve()) for request in requests}) == 4


def test_a_readable_scope_stays_readable() -> None:
    """Up to 255 characters of any script: of one that this Python does not know yet (U+0378), too."""
    for scope in ("é" * 255, "\u0378", "a b"):
        sender(f"/tenant?tenant={quote(scope)}")()
        assert IdempotencyKey.objects.latest("pk").scope == scope


def test_the_scope_of_a_request_is_that_of_a_protected_view(rf: RequestFactory, settings: Any) -> None:
    """With the project's `SCOPE` and without; whom a view refuses with 403 raises."""
    settings.IDEMPOTENCY = {"SCOPE": lambda request: f"acme:{caller_scope(request)}"}
    assert caller_scope(rf.post("/"), configured=True) == "acme:anonymous"
    settings.IDEMPOTENCY = {"ANONYMOUS": "refuse"}
    with pytest.raises(PermissionDenied, match="Only callers who can be told apart"):
        caller_scope(rf.post("/"), configured=True)
    settings.IDEMPOTENCY = {}
    assert caller_scope(rf.post("/"), configured=True) == "anonymous"
