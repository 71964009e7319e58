"""What identifies a caller: an Authorization scheme, a database, a lazily wrapped user, a token, a form."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.backends import signed_cookies
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, QueryDict
from django.test import Client, RequestFactory
from django.test.utils import isolate_apps
from django.utils.functional import SimpleLazyObject

from django_idempotency import Idempotency, IdempotencyConfigurationError, run_once
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import acting_for, advise, scope_of
from django_idempotency.engine.request.problems import Refused
from django_idempotency.keys import caller_scope
from django_idempotency.maintenance import scope_of_user
from django_idempotency.maintenance.erasure import forget_scope
from django_idempotency.models import IdempotencyKey
from tests.callers import caller_urls
from tests.callers.caller_urls import auth_scope

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.caller_urls")]
CHANGING = [
    'Digest username="a", response="b"',
    "AWS4-HMAC-SHA256 Credential=a, Signature=b",
    "AWS4-ECDSA-P256-SHA256 Credential=a",
    "AWS a:b",
    "Signature keyId=a",
    "Hawk id=a",
    "Negotiate a",
    "NTLM a",
    "OAuth oauth_nonce=a",
    "DPoP a",
    "HMAC-SHA256 a",
    "SharedKey a:b",
    "hAwK\tid=a",
    "Madeup a",
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    caller_urls.RUNS.clear()
    advise.cache_clear()
    yield
    advise.cache_clear()


def scope(rf: RequestFactory, **headers: str) -> str | None:
    return scope_of(rf.post("/", headers=headers), resolve())


@pytest.mark.parametrize(
    "template", ["JWT {}", "ApiKey {}", "Key {}", "{}", "SSWS {}", "PRIVATE-TOKEN {}", "Bearer\t{}", "token={}"]
)
def test_every_scheme_that_stays_the_same_identifies_its_caller(post: Post, template: str) -> None:
    """Those of the list, and a bare value. If the project checks its tokens itself, no other token gets the answer."""
    tokens = ("alice", "bob", "alice")
    answers = [post("/plain", headers={"Authorization": template.format(token)}) for token in tokens]
    assert [answer.json()["secret"] for answer in answers] == ["of run 1", "of run 2", "of run 1"]
    assert not IdempotencyKey.objects.filter(scope="anonymous").exists()


@pytest.mark.parametrize("value", CHANGING)
def test_a_scheme_that_changes_with_each_request_is_refused(
    post: Post, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """With 403 to the client, because a client must not be able to make errors; the developer is told once."""
    with caplog.at_level(logging.WARNING, "django_idempotency"):
        answers = [post("/plain", headers={"Authorization": value, "X-Api-Key": "a"}) for _ in range(2)]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "changing-credential")] * 2
    assert "change with each request" in answers[0].json()["detail"]
    assert (caller_urls.RUNS, IdempotencyKey.objects.count()) == ([], 0)
    (record,) = [record for record in caplog.records if record.name == "django_idempotency"]
    assert record.getMessage().startswith("POST plain refused an idempotency key")
    assert record.getMessage().endswith("Set request.user before the view or pass scope=callable(request).")


def test_a_client_that_makes_up_schemes_does_not_fill_the_log(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever they are called, an operation is told once."""
    with caplog.at_level(logging.WARNING, "django_idempotency"):
        answers = [post("/plain", headers={"Authorization": f"hmac{number} a"}) for number in range(5)]
    assert [answer.status_code for answer in answers] == [403] * 5
    assert len([record for record in caplog.records if record.name == "django_idempotency"]) == 1


def test_a_token_without_a_scheme_may_have_any_letters(rf: RequestFactory) -> None:
    """In one of 1,300 long tokens, the letters of HMAC follow each other somewhere."""
    tokens = ("eyJhbGciOi.JhMAcXY.abc", "aws4you", "scram-bled")
    assert len({scope(rf, Authorization=token) for token in tokens} - {"anonymous", None}) == 3


def test_a_changing_credential_is_no_matter_where_the_caller_is_known(client: Client, post: Post) -> None:
    """By scope=, or because the project has authenticated the user."""
    headers = {"Authorization": "Digest nonce=1"}
    assert post("/tenant?tenant=a", headers=headers).status_code == 200
    client.force_login(User.objects.create_user("ada"))
    assert post("/plain", headers=headers).status_code == 200


def test_one_credential_may_be_spelled_in_several_ways(rf: RequestFactory) -> None:
    """The scheme's case and the white space do not count; a token's case does."""
    spellings = ("Bearer a", "bearer  a", "BEARER\ta ", "\tBearer \t a")
    assert len({scope(rf, Authorization=value) for value in spellings}) == 1
    assert scope(rf, Authorization="AbC") != scope(rf, Authorization="abc")
    assert scope(rf, Authorization="Bearer a") != scope(rf, Authorization="Bearera")


def test_a_credential_counts_to_its_end(rf: RequestFactory) -> None:
    """Also what comes after a space in it, and after a line feed of the join."""
    found = [scope(rf, Authorization=f"Bearer {value}") for value in ("a", "a b", "a c", "a b c")]
    found.append(scope(rf, Authorization="Bearer a", **{"X-Api-Key": "b"}))
    assert len(set(found)) == 5


def test_scopes_stay_the_same_from_release_to_release(rf: RequestFactory) -> None:
    """A retry across an upgrade has another scope by a new text, and runs again."""
    assert (
        scope(rf, Authorization="Bearer a")
        == "authorization:8b120768152c81e51b6fc3f5e959950abda1ac9bcde05d7c7044a9390f21db99"
    )
    assert (
        scope(rf, Authorization="Bearer a", **{"X-Api-Key": "b"})
        == "authorization+x-api-key:728bd1b594f274007a8beb42d9c422f72a0356a9345b383a849400fb12de5d6d"
    )
    assert acting_for("user:shop/auth.User:a@b+c d") == "for:user:shop/auth.User:a@b%2Bc%20d+"


@pytest.mark.parametrize("value", ["", " ", "Bearer", "Basic ", "api-key"])
def test_a_scheme_without_a_credential_identifies_no_caller(rf: RequestFactory, value: str) -> None:
    """A script without a token may send such a header. Its session still counts."""
    assert scope(rf, Authorization=value) == "anonymous"
    sessions = {scope(rf, Authorization=value, Cookie=f"sessionid={name}") for name in "ab"}
    assert len(sessions) == 2


@pytest.mark.django_db(databases=["default", "other"])
def test_two_people_with_one_primary_key_on_two_databases_are_two_callers(rf: RequestFactory) -> None:
    """The key table may be shared; the scope of the default database stays as it was."""
    people = [User.objects.using(alias).create(pk=77, username="a") for alias in ("default", "other")]
    assert [scope_of_user(person) for person in people] == ["user:auth.User:77", "user:other/auth.User:77"]
    assert scope_of_user(people[1]) == "user:other/auth.User:77"
    request = rf.post("/")
    request.user = SimpleLazyObject(lambda: people[1])
    assert scope_of(request, resolve()) == "user:other/auth.User:77"


@pytest.mark.django_db(databases=["default", "other"])
def test_a_user_who_was_read_from_a_replica_is_the_same_caller(settings: Any) -> None:
    """A retry may read another replica. The database that counts is the one that the user is written to."""
    settings.DATABASE_ROUTERS = ["tests.routers.OtherIsAReplica"]
    people = [User.objects.using(alias).create(pk=77, username="a") for alias in ("default", "other")]
    assert {scope_of_user(person) for person in people} == {"user:auth.User:77"}


class Partner:
    is_authenticated = True

    def __init__(self, pk: Any = 1) -> None:
        self.pk = pk


class Robot(Partner):
    pass


def test_lazily_wrapped_users_of_two_kinds_are_two_callers(rf: RequestFactory) -> None:
    """And a wrapped user is the same caller as the user itself."""
    scopes = []
    for kind in (Partner, Robot):
        for user in (SimpleLazyObject(kind), kind()):
            request = rf.post("/")
            request.user = user
            scopes.append(scope_of(request, resolve()))
    assert scopes == [f"user:{__name__}.Partner:1"] * 2 + [f"user:{__name__}.Robot:1"] * 2


class SessionStore(signed_cookies.SessionStore):
    """A project's own engine: this module is its SESSION_ENGINE."""


@pytest.mark.parametrize(
    ("engine", "identifies"),
    [
        ("django.contrib.sessions.backends.db", True),
        ("django.contrib.sessions.backends.signed_cookies", False),
        (__name__, False),
    ],
)
def test_a_cookie_that_holds_the_sessions_data_identifies_no_caller(
    rf: RequestFactory, settings: Any, engine: str, identifies: bool
) -> None:
    """The cookie changes with the data. Of a subclass, too."""
    settings.SESSION_ENGINE = engine
    assert (scope(rf, Cookie="sessionid=a") != "anonymous") is identifies


@pytest.fixture
def access_token() -> Iterator[Any]:
    """A model that is made as a project swaps in its own for django-oauth-toolkit's."""
    with isolate_apps("tests.shopapp"):
        meta = type("Meta", (), {"abstract": True, "app_label": "shopapp"})
        fields = {
            "user": models.ForeignKey(User, models.CASCADE, null=True, related_name="+"),
            "application": models.ForeignKey(Group, models.CASCADE, null=True, related_name="+"),
        }
        base = type(
            "AbstractAccessToken", (models.Model,), {"__module__": "oauth2_provider.models", "Meta": meta, **fields}
        )
        meta = type("Meta", (), {"app_label": "shopapp"})
        yield type("Token", (base,), {"__module__": __name__, "Meta": meta})


def test_a_clients_token_is_scoped_by_the_client(access_token: Any) -> None:
    """Not by the token, which the client renews between a request and its retry. No query asks for the client."""
    rows = [{"pk": 1, "application_id": 5}, {"pk": 2, "application_id": 5}, {"pk": 3, "application_id": 6}]
    scopes = [auth_scope(access_token(**row)) for row in rows]
    assert scopes == ["application:auth.Group:5"] * 2 + ["application:auth.Group:6"]
    both = auth_scope(access_token(pk=4, application_id=5, user_id=7))
    assert both == "for:user:auth.User:7+application:auth.Group:5"
    assert auth_scope(access_token(pk=4, user_id=7)) == "user:auth.User:7"


def test_what_clients_did_for_a_user_is_forgotten_with_the_user() -> None:
    """And no other user's keys."""
    mine = ("user:auth.User:7", "for:user:auth.User:7+application:shop.Client:5")
    others = ("user:auth.User:77", "for:user:auth.User:77+application:shop.Client:7", "application:shop.Client:7")
    for scope_ in (*mine, *others):
        run_once(str, operation="o", scope=scope_, key="k")
    assert not acting_for("user:a.B:7+x").startswith(acting_for("user:a.B:7"))
    assert forget_scope(scope_of_user(User(pk=7))).deleted == 2
    assert set(IdempotencyKey.objects.values_list("scope", flat=True)) == set(others)


@pytest.mark.parametrize("name", ["anna", "علی\u200cرضا", "Анна-Мария Константинопольская", "a" * 250])
def test_what_a_client_did_for_a_user_of_any_name_is_forgotten(rf: RequestFactory, name: str) -> None:
    """Where a name is a primary key. The scope is readable, so that all of the user's clients share a prefix."""
    request: Any = rf.post("/")
    request.user, request.auth = Partner(name), {"client_id": "shop", "iss": "shops"}
    scope_ = scope_of(request, resolve())
    run_once(str, operation="o", scope=scope_, key="k")
    assert IdempotencyKey.objects.get().scope == scope_ != scope_of_user(request.user)
    assert forget_scope(scope_of_user(request.user)).deleted == 1


def test_a_primary_key_that_is_a_secret_is_stored_as_a_hash() -> None:
    """The REST framework's token is its own primary key. A user's name is no secret."""
    pytest.importorskip("rest_framework")
    from rest_framework.authtoken.models import Token

    scopes = [auth_scope(Token(key=key)) for key in ("s3cret", "s3cret", "other")]
    assert (scopes[0] == scopes[1], scopes[0] == scopes[2], "s3cret" in scopes[0]) == (True, False, False)
    assert scopes[0] == "auth:b5fdc0f6b5daeca9aed87eedd8b29dc5b48f1ca32785cb3bc29432aa847cfc01"
    assert scope_of_user(User(pk="ada")) == "user:auth.User:ada"
    assert auth_scope(Group(pk=7)) == "user:auth.Group:7"


def test_a_token_of_nobody_is_refused(access_token: Any) -> None:
    """With the advice: nothing in it stays."""
    owner = r"shopapp\.Token that belongs to no application.*Pass scope=callable"
    with pytest.raises(IdempotencyConfigurationError, match=owner):
        auth_scope(access_token(pk=1))


def checked_form(rf: RequestFactory, **cookies: str) -> HttpRequest:
    """A request as Django's CSRF check leaves it."""
    request: Any = rf.post("/", headers={"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())})
    request.csrf_processing_done = True
    if "csrftoken" in cookies:
        request.META["CSRF_COOKIE"] = cookies["csrftoken"]
    return request


def test_a_form_is_told_apart_by_the_browsers_csrf_secret(rf: RequestFactory) -> None:
    """It is there before the first click. The session may come with the first answer."""
    before, after = checked_form(rf, csrftoken="a"), checked_form(rf, csrftoken="a", sessionid="b")
    assert scope_of(before, resolve()) == scope_of(after, resolve())
    assert scope_of(checked_form(rf, csrftoken="c"), resolve()) != scope_of(before, resolve())
    assert "csrf:" in str(scope_of(before, resolve()))


def test_a_csrf_secret_that_was_not_checked_does_not_count(rf: RequestFactory, settings: Any) -> None:
    """A view without the check may set that cookie in its first answer. The test client skips the check, too."""
    unchecked: Any = checked_form(rf, csrftoken="a", sessionid="b")
    unchecked._dont_enforce_csrf_checks = True
    exempt: Any = checked_form(rf, csrftoken="a", sessionid="b")
    del exempt.csrf_processing_done
    assert {str(scope_of(request, resolve()))[:8] for request in (unchecked, exempt)} == {"session:"}
    assert str(scope_of(checked_form(rf, sessionid="b"), resolve())).startswith("session:")
    settings.CSRF_USE_SESSIONS = True
    assert str(scope_of(checked_form(rf, csrftoken="a", sessionid="b"), resolve())).startswith("session:")


# --- what identifies nobody


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer null"},
        {"Authorization": "bearer undefined"},
        {"Authorization": "Token None"},
        {"Authorization": "null"},
        {"Authorization": "Basic Og=="},
        {"X-Api-Key": "undefined"},
        {"X-Api-Key": ""},
        {"Authorization": "Bearer null", "X-Api-Key": "null"},
    ],
)
def test_a_placeholder_is_no_credential(rf: RequestFactory, headers: dict[str, str]) -> None:
    """A script sends it for every guest, so guests with a session stay apart, and "refuse" refuses the others."""
    assert scope(rf, **headers) == "anonymous"
    assert {scope(rf, Cookie=f"sessionid={name}", **headers) for name in "ab"} == {
        scope(rf, Cookie=f"sessionid={name}") for name in "ab"
    }
    with pytest.raises(Refused):
        scope_of(rf.post("/", headers=headers), resolve(Idempotency(anonymous="refuse")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Api-Key", str),
        ("Authorization", lambda key: f"Bearer {key}"),
        ("Authorization", lambda key: f"Basic {b64encode(key.encode() + b':').decode()}"),
    ],
    ids=["alone", "Bearer", "Basic"],
)
@pytest.mark.parametrize("key", ["pk_live_a", "pk_test_a", "sb_publishable_a"])
def test_a_publishable_key_identifies_no_caller(
    rf: RequestFactory, name: str, value: Callable[[str], str], key: str
) -> None:
    """Every browser of a shop sends it. It still tells shops apart."""
    shop, other = {name: value(key)}, {name: value(f"{key}b")}
    sessions = [scope(rf, Cookie=f"sessionid={visitor}", **of) for visitor in "ab" for of in (shop, other)]
    assert len({*sessions, scope(rf, **shop), scope(rf, **other)}) == 6
    refusing = resolve(Idempotency(anonymous="refuse"))
    with pytest.raises(Refused):
        scope_of(rf.post("/", headers=shop), refusing)
    assert scope_of(rf.post("/", headers={**shop, "Cookie": "sessionid=a"}), refusing) == sessions[0]
    secret = {"Authorization": "Bearer secret", "X-Api-Key": "pk_live_a"}
    assert scope(rf, Cookie="sessionid=a", **secret) == scope(rf, **secret)


# --- caller_scope


def test_a_scope_that_starts_from_caller_scope_keeps_callers_apart(rf: RequestFactory, settings: Any) -> None:
    """And refuses whom the endpoint refuses; outside of a scope function the project's default does, with 403."""
    tenant = resolve(Idempotency(scope=lambda request: f"acme:{caller_scope(request)}"))
    keys = [rf.post("/", headers={"X-Api-Key": name}) for name in "ab"]
    assert [scope_of(request, tenant) for request in keys] == [f"acme:{scope_of(one, resolve())}" for one in keys]
    assert scope_of(rf.post("/"), tenant) == "acme:anonymous"
    with pytest.raises(Refused):
        scope_of(rf.post("/"), resolve(Idempotency(scope=caller_scope, anonymous="refuse")))
    assert caller_scope(rf.post("/")) == "anonymous"
    settings.IDEMPOTENCY = {"ANONYMOUS": "refuse", "SCOPE": caller_scope}
    with pytest.raises(PermissionDenied, match="Only callers who can be told apart"):
        caller_scope(rf.post("/"))


@pytest.mark.parametrize(
    "place",
    [
        lambda request, value: vars(request).update(GET=QueryDict(f"access_token={value}")),
        lambda request, value: vars(request).update(_post=QueryDict(f"access_token={value}")),
        lambda request, value: request.META.update(QUERY_STRING=f"access%5Ftoken={value}"),
        lambda request, value: vars(request).update(COOKIES={"sessionid": value}),
        lambda request, value: request.META.update(HTTP_COOKIE=f"sessionid={value}"),
    ],
    ids=["query of a middleware", "form", "query", "cookies of a middleware", "cookie"],
)
def test_a_secret_tells_callers_apart_wherever_it_stands(rf: RequestFactory, place: Callable[..., Any]) -> None:
    """A request without any is not searched for them, so each of them has to show that there is one."""
    scopes = []
    for value in ("a", "b", "a"):
        request = rf.post("/")
        place(request, value)
        scopes.append(scope_of(request, resolve()))
    assert scopes[0] == scopes[2] != scopes[1]
    assert "anonymous" not in scopes
