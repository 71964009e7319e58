"""What was verified may merge, what was merely sent may only separate: JSON Web Tokens, forged and renewed."""

from __future__ import annotations

from time import time
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.test import Client

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.engine.request.callers import advise
from django_idempotency.maintenance import forget_scope, scope_of_user
from django_idempotency.models import IdempotencyKey
from tests.callers import identity_urls
from tests.callers.identity_urls import API_KEY, NINJA_INSTALLED, OPAQUE, jwt, send
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.identity_urls")]
PLAIN, REST, NINJA = ("plain", True), ("rest", REST_FRAMEWORK_INSTALLED), ("ninja", NINJA_INSTALLED)


def paths(*found: str) -> Any:
    """Those of the frameworks that are installed."""
    installed = dict([PLAIN, REST, NINJA])
    return pytest.mark.parametrize("path", [path for path in found if installed[path.split("/")[1]]])


@pytest.fixture(autouse=True)
def _middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.callers.identity_urls.by_token"]
    identity_urls.RUNS.clear()
    advise.cache_clear()


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def bearer(*, forged: bool = False, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt('forged' if forged else 'signed', **claims)}"}


VERIFYING = ("/rest/claims", "/rest/text", "/rest/bytes", "/rest/object")
SETTING = ("/plain/row", "/rest/none", "/ninja/row", "/ninja/sets")
"""Where a token's claims are handed on beside a user who is a row, and where only the user is."""


# --- clients


@paths(*VERIFYING, *SETTING)
def test_a_forged_client_reaches_no_key_of_that_client(path: str, ada: User) -> None:
    """Beside a session, and beside an API key. Nor does it use one up, or equal its sender without it."""
    others: list[dict[str, Any]] = [{"session": ada}]
    if not path.startswith("/plain"):
        others.append({"X_Api_Key": API_KEY})
    assert send(path, **bearer(sub=ada.pk, azp="A")) == "false"
    for other in others:
        forged = bearer(forged=True, sub=ada.pk, azp="A")
        assert [send(path, **other, **forged), send(path, **other)].count("true") == 0
        assert send(path, **other, **forged, key="other") == "false"
        assert send(path, **bearer(sub=ada.pk, azp="A"), key="other") == "false"
        IdempotencyKey.objects.exclude(key="k").delete()
        IdempotencyKey.objects.exclude(pk=IdempotencyKey.objects.earliest("pk").pk).delete()
    assert send(path, **bearer(sub=ada.pk, azp="A")) == "true"


@paths(*VERIFYING, *SETTING)
def test_two_clients_of_one_user_are_two_callers_and_a_renewed_token_is_the_same(path: str, ada: User) -> None:
    """However the token is handed on, or if it is not."""
    tokens = [bearer(sub=ada.pk, azp=name, jti=number) for number, name in enumerate("ABAB")]
    assert [send(path, **token) for token in tokens] == ["false", "false", "true", "true"]
    assert send(path, session=ada) == "false"


@pytest.mark.parametrize("template", ["Bearer\t{}", "bearer  {}", "JWT {}", "Token {}", "{}", "DPoP {}", "X {}"])
def test_a_client_cannot_hide_behind_a_scheme(ada: User, template: str) -> None:
    """White space is what HTTP calls so. Whatever the scheme, the project has checked the token."""
    answers = [send("/plain/row", Authorization=template.format(jwt(sub=ada.pk, azp=name))) for name in "ABA"]
    assert [*answers, send("/plain/row", session=ada)] == ["false", "false", "true", "false"]


@paths("/plain/row", "/ninja/header")
def test_a_client_cannot_hide_in_another_header(path: str, ada: User) -> None:
    answers = [send(path, X_Access_Token=jwt(sub=ada.pk, azp=name)) for name in "ABA"]
    assert [*answers, send(path, session=ada)] == ["false", "false", "true", "false"]


@paths("/plain/row", "/ninja/cookie")
def test_a_client_cannot_hide_in_a_cookie(path: str, ada: User) -> None:
    answers = [send(path, cookie=jwt(sub=ada.pk, azp=name)) for name in "ABA"]
    assert [*answers, send(path, session=ada)] == ["false", "false", "true", "false"]


def test_a_forged_client_counts_with_all_other_credentials(ada: User) -> None:
    """Of two holders of a key, each with the same forgery, neither is the other, nor the client alone."""
    forged = bearer(sub=ada.pk, azp="A")
    others: list[dict[str, str]] = [{}, {"X_Api_Key": "a"}, {"X_Api_Key": "b"}, {"X_Session_Token": "a"}]
    others += [{"X_Api_Key": jwt(sub=ada.pk, scope="read")}, {"X_Api_Key": jwt(sub=ada.pk, scope="all")}]
    assert [send("/plain/row", **forged, **other) for other in others] == ["false"] * len(others)
    assert send("/plain/row", **forged, X_Api_Key=jwt(sub=ada.pk, scope="all", jti=5)) == "true"


# --- users in no table


@paths("/rest/stranger-claims", "/rest/stranger-bytes", "/rest/stranger-token", "/ninja/stranger-token")
def test_user_17_of_two_issuers_is_two_callers(path: str) -> None:
    """Where the token is handed on. A renewed token is the same caller, and one without an issuer is another."""
    issuers: list[dict[str, str]] = [{"iss": "shops"}, {"iss": "partners"}, {}]
    tokens = [bearer(sub="17", jti=number, **issuer) for number in (1, 2) for issuer in issuers]
    assert [send(path, **token) for token in tokens] == ["false"] * 3 + ["true"] * 3
    assert forget_scope(scope_of_user(identity_urls.Stateless("17"))).deleted == 3


@paths("/plain/stranger", "/rest/stranger-none", "/ninja/stranger")
def test_a_user_whom_only_an_unverified_token_tells_apart_is_refused(path: str, caplog: Any) -> None:
    """Before the claim, with 403 to the client; the developer is told the cure once."""
    for _ in range(2):
        assert send(path, **bearer(sub="17", iss="shops")) == 403
    assert (identity_urls.RUNS, IdempotencyKey.objects.count()) == ([], 0)
    told = [record.getMessage() for record in caplog.records if record.name == "django_idempotency"]
    assert len(told) == 1
    assert "Return the token from the authenticator" in told[0]
    assert "or pass scope=callable(request)." in told[0]


@paths("/plain/stranger", "/rest/stranger-none", "/ninja/stranger")
def test_observing_tells_who_would_be_refused(path: str, settings: Any, caplog: Any) -> None:
    """The view runs."""
    settings.IDEMPOTENCY = {"OBSERVE": True}
    sent = {"Idempotency-Key": "k", **bearer(sub="17", iss="shops")}
    assert Client().post(path, {}, content_type="application/json", headers=sent).status_code == 200
    assert len(identity_urls.RUNS) == 1
    (told,) = (one.getMessage() for one in caplog.records if "would have been refused" in one.getMessage())
    assert "refused with 403: Idempotency-Key needs an identified caller." in told


def test_a_token_of_that_user_in_a_cookie_separates() -> None:
    """The browser may hold tokens that nobody has asked for, so it isn't refused."""
    answers = [send("/plain/stranger", cookie=jwt(sub="17", iss=name)) for name in ("shops", "partners", "shops")]
    assert answers == ["false", "false", "true"]


def test_a_user_of_an_api_key_is_not_refused_for_a_proxys_token() -> None:
    """A proxy may add a JWT to each request. The issuer that it names separates, and is not believed."""
    key = {"Authorization": f"Bearer {OPAQUE}17-1"}
    issuers = ({}, {"iss": "proxy"}, {"iss": "other"}, {"iss": "proxy", "jti": "renewed"})
    answers = [send("/plain/stranger", **key, X_Goog_Iap_Jwt_Assertion=jwt(**claims)) for claims in issuers]
    assert answers == ["false", "false", "false", "true"]


def test_a_user_of_a_session_is_not_refused(settings: Any) -> None:
    """Of LDAP, for example, whom the session's backend makes."""
    settings.AUTHENTICATION_BACKENDS = ["tests.callers.identity_urls.Directory"]
    client = Client()
    session = client.session
    session.update({SESSION_KEY: "17", BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0], HASH_SESSION_KEY: ""})
    session.save()
    headers = {"Idempotency-Key": "k", **bearer(forged=True, iss="shops")}
    answers = [client.post("/plain/stranger", headers=headers) for _ in range(2)]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
    assert client.post("/plain/stranger", headers={"Idempotency-Key": "k"})["Idempotency-Replayed"] == "false"


# --- tokens without a user


@pytest.mark.parametrize(("left", "told"), [(3_600, 1), (90_000, 0), (None, 0), ("soon", 0)])
def test_a_token_that_expires_before_the_key_is_told_once(left: Any, told: int, caplog: Any) -> None:
    """Where only the project's view knows what it means, because a renewed one is another caller."""
    claims = {} if left is None else {"exp": left if isinstance(left, str) else int(time()) + left}
    for number in range(2):
        assert send("/plain/bare", **bearer(sub="17", jti=number, **claims)) == "false"
    said = [record.getMessage() for record in caplog.records if record.name == "django_idempotency"]
    start = "POST plain/bare: the JWT in the Authorization header expires before `ttl` is over."
    assert ([text.startswith(start) for text in said], "".join(said).count("Set request.user")) == ([True] * told, told)


@paths("/rest/alone-text", "/rest/alone-bytes", "/rest/alone-claims", "/ninja/alone-text", "/ninja/alone-claims")
def test_a_token_without_a_user_is_known_by_the_claims_that_stay(path: str) -> None:
    """A renewed token is the same caller. Another subject, issuer, tenant, audience or actor is not."""
    claims = {"iss": "shops", "sub": "17", "aud": ["a", "b"], "tenant": {"id": 1}, "exp": 1, "iat": 1, "jti": "a"}
    assert [send(path, **bearer(**claims)) for _ in range(2)] == ["false", "true"]
    renewed = {"exp": 2, "iat": 2, "jti": "b", "nbf": 2, "auth_time": 2, "nonce": "n", "at_hash": "h", "sid": "s"}
    assert send(path, **bearer(**claims | renewed)) == "true"
    assert send(path, **bearer(**claims | {"aud": ["b", "a"]})) == "true"
    changed: list[dict[str, Any]] = [{"sub": "18"}, {"iss": "partners"}, {"tenant": {"id": 2}}, {"aud": ["a"]}]
    changed += [{"act": {"sub": "robot"}}, {"azp": "A"}, {"org": "x"}]
    assert [send(path, **bearer(**claims | change)) for change in changed] == ["false"] * len(changed)


@paths("/rest/alone-text", "/ninja/alone-text")
def test_a_token_whose_claims_name_no_subject_is_known_by_its_text(path: str) -> None:
    """Its number may be all that tells its owner."""
    assert [send(path, **bearer(iss="shops", jti=number)) for number in (1, 2, 1)] == ["false", "false", "true"]


def test_the_scope_of_a_token_stays_the_same_from_release_to_release() -> None:
    """It shows the subject to an operator."""
    if not NINJA_INSTALLED:
        pytest.skip("about Django Ninja")
    send("/ninja/alone-text", **bearer(iss="shops", sub="ada@shop.example", exp=1, roles=["b", "a"]))
    assert IdempotencyKey.objects.get().scope == (
        "jwt:ada@shop.example:2af30e5f791ff3b191f6c2d128f6690c09de833d664100bd3fb5b0dfb1ff2cd3"
    )


@pytest.mark.skipif(not NINJA_INSTALLED, reason="about Django Ninja")
def test_a_user_of_a_session_may_send_several_tokens(ada: User) -> None:
    """In Ninja, each of them is the caller, as for the view, which reads `request.auth`."""
    tokens = [f"Bearer {OPAQUE}{name}-1" for name in "aba"]
    answers = [send("/ninja/alone-text", session=ada, Authorization=token) for token in tokens]
    assert answers == ["false", "false", "true"]


# --- what is handed on without identity


def test_a_header_of_the_project_is_not_taken_for_what_was_verified(settings: Any) -> None:
    """Whatever the project calls it."""
    if not REST_FRAMEWORK_INSTALLED:
        pytest.skip("about the REST framework")
    settings.IDEMPOTENCY = {"CREDENTIAL_HEADERS": ["Auth"]}
    assert send("/plain/row", Auth="17") == "false"
    assert IdempotencyKey.objects.get().scope.startswith("sent+auth:")


def test_an_empty_primary_key_is_no_identity() -> None:
    """Two services whose token has no subject would be one caller."""
    with pytest.raises(IdempotencyConfigurationError, match=r"has no primary key.*Pass scope=callable"):
        scope_of_user(identity_urls.Stateless(""))
