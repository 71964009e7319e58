"""The client that a token names is part of the scope, whatever package the token is of."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import models
from django.http import QueryDict
from django.test import RequestFactory
from django.test.utils import isolate_apps

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import acting_for, name_among, scope_of
from tests.callers.caller_urls import auth_scope, jwt


@pytest.fixture
def partner_key() -> Iterator[Any]:
    """A project's own token, whose foreign key says `client` by its name, or by its model."""
    with isolate_apps("tests.shopapp"):
        body = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shopapp"})}
        mobile = type("MobileClient", (models.Model,), dict(body))
        keys = {
            "user": models.ForeignKey(User, models.CASCADE, related_name="+"),
            "client": models.ForeignKey(Group, models.CASCADE, null=True, related_name="+"),
            "issued_to": models.ForeignKey(mobile, models.CASCADE, null=True, related_name="+"),
        }
        yield type("PartnerKey", (models.Model,), body | keys)


def scope_with(rf: RequestFactory, headers: dict[str, str] | None = None, **found: Any) -> str:
    request: Any = rf.post("/", headers=headers or {})
    vars(request).update({"user": User(pk=7)} | found)
    return scope_of(request, resolve())


def test_two_clients_of_one_user_are_two_callers_by_the_row_of_their_token(
    rf: RequestFactory, partner_key: Any
) -> None:
    """Whatever package the token is of: a foreign key to a client says so by its own name, or by its model's."""
    rows: list[Any] = [{"client_id": 5}, {"client_id": 6}, {"issued_to_id": 5}, {}]
    assert [scope_with(rf, auth=partner_key(pk=1, user_id=7, **row)) for row in rows] == [
        "for:user:auth.User:7+client:auth.Group:5",
        "for:user:auth.User:7+client:auth.Group:6",
        "for:user:auth.User:7+issued_to:shopapp.MobileClient:5",
        "user:auth.User:7",
    ]


def test_two_clients_on_two_databases_are_two_callers(rf: RequestFactory, partner_key: Any, settings: Any) -> None:
    """Their rows can have the same number. The database is that of the token, or the one that a router names."""
    row = partner_key(pk=1, user_id=7, client_id=5)
    row._state.db = "other"
    assert scope_with(rf, access_token=row) == "for:user:auth.User:7+client:other/auth.Group:5"
    settings.DATABASE_ROUTERS = ["tests.routers.OrdersAreOnOther"]
    row = partner_key(pk=1, user_id=7, issued_to_id=5)
    assert scope_with(rf, access_token=row) == "for:user:auth.User:7+issued_to:other/shopapp.MobileClient:5"


def test_a_token_of_somebody_else_beside_a_session_says_nothing(rf: RequestFactory, partner_key: Any) -> None:
    """Nor does one that has expired. A middleware may look up whatever was sent."""
    mine, other, old = (partner_key(pk=1, user_id=user, client_id=5) for user in (7, 8, 7))
    old.is_expired = lambda: True
    scopes = [scope_with(rf, access_token=row) for row in (mine, other, old)]
    assert scopes == ["for:user:auth.User:7+client:auth.Group:5", "user:auth.User:7", "user:auth.User:7"]


@pytest.mark.parametrize("claim", ["client_id", "azp"])
def test_two_clients_of_one_user_are_two_callers_by_the_text_of_their_jwt(rf: RequestFactory, claim: str) -> None:
    """In `request.auth`, or only in the header, where nobody has verified it: a forged one is not that client."""
    scopes = [scope_with(rf, auth=jwt(client, claim)) for client in ("shop", "app")]
    for spaces in " ", "  ", "\t":
        sent = [scope_with(rf, {"Authorization": f"Bearer{spaces}{jwt(name, claim)}"}) for name in ("shop", "app")]
        assert len({*sent, *scopes, scope_with(rf)}) == 5
        assert all(text.startswith("for:user:auth.User:7+sent:") for text in sent)
    assert len(set(scopes)) == 2
    assert all(text.startswith("for:user:auth.User:7+client:") for text in scopes)


def test_the_names_of_authenticators_stay_the_same_from_release_to_release() -> None:
    """They are part of the scope of a text. A text that a project has set by hand comes from none."""
    assert [name_among("ab", lambda one: "Key", one) for one in "ab"] == ["Key#1", "Key#2"]
    assert [name_among("ab", str.upper, one) for one in "ab"] == ["A", "B"]
    assert auth_scope("17") == "auth:4523540f1504cd17100c4835e85b7eefd49911580f8efff0599a8f283be6b9e3"


def test_a_jwt_may_have_any_length(rf: RequestFactory) -> None:
    """Its claims are filled up as Base64 demands it. A client's name may be any text, also half a character."""
    names = ["a" * length for length in range(1, 21)]
    scopes = {scope_with(rf, auth=jwt(name)) for name in [*names, "\ud800"]}
    assert (len(scopes), "user:auth.User:7" in scopes) == (21, False)


def test_two_users_with_long_names_are_two_callers() -> None:
    """The scope begins with a name of up to 120 characters, or with its hash, in each release."""
    assert acting_for("a" * 120) == f"for:{'a' * 120}+"
    assert acting_for("a" * 121) == "for:e9615320128cc7a3d6078e9af05603188e5ccbf0d07d8b735d3df5e8e0c1281f+"
    assert acting_for("b" * 121) != acting_for("a" * 121)


def test_an_issuer_is_named_for_a_user_without_a_row(rf: RequestFactory) -> None:
    """A user with a row is the same caller for every issuer. A token without a user is a caller of its own."""
    stateless, client = SimpleNamespace(is_authenticated=True, pk=7), f"client:{sha256(b'app').hexdigest()}"
    both = {"iss": "shops", "azp": "app"}
    issuer = f"issuer:{sha256(b'shops').hexdigest()}"
    assert scope_with(rf, auth=both, user=stateless) == f"for:user:types.SimpleNamespace:7+{client}+{issuer}"
    assert scope_with(rf, auth=both) == f"for:user:auth.User:7+{client}"


@pytest.mark.parametrize(
    "text",
    [
        "opaque",
        jwt("shop").rpartition(".")[0],
        "a.b",
        "a.!.c",
        "a.bnVsbA.c",
        "a.gICA.c",
        "a.eyJ.c",
        "a.e!.c",
        f"a.{'W1tb' * 20000}.c",
        "",
    ],
)
def test_a_text_that_names_no_client_changes_nothing(rf: RequestFactory, text: str) -> None:
    """It may be anything that a client sends."""
    assert scope_with(rf, auth=text) == "user:auth.User:7"
    assert scope_with(rf, {"Authorization": f"Bearer {text}"}) == "user:auth.User:7"
    assert scope_with(rf, {"Authorization": f"Basic {text}"}) == "user:auth.User:7"


def test_a_users_own_foreign_keys_say_nothing_about_a_token(rf: RequestFactory) -> None:
    """An authenticator may leave the user in `request.auth`."""
    with isolate_apps("tests.shopapp"):
        body = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shopapp"}), "is_authenticated": True}
        client = models.ForeignKey(Group, models.CASCADE, related_name="+")
        member = type("Member", (models.Model,), body | {"client": client})
        assert scope_with(rf, auth=member(pk=7, client_id=5)) == "user:auth.User:7"


def test_the_token_of_allauth_is_scoped_by_its_client() -> None:
    """Its row is a new one before a retry; the names of the class and its module say that it is an access token."""
    with isolate_apps("tests.shopapp"):
        meta = type("Meta", (), {"app_label": "shopapp"})
        keys = {
            "user": models.ForeignKey(User, models.CASCADE, null=True, related_name="+"),
            "client": models.ForeignKey(Group, models.CASCADE, related_name="+"),
        }
        base = {"__module__": "allauth.idp.oidc.models", "Meta": meta}
        token = type("Token", (models.Model,), base | keys)
        assert auth_scope(token(pk=1, client_id=5)) == auth_scope(token(pk=2, client_id=5)) == "client:auth.Group:5"
        assert auth_scope(token(pk=3, client_id=5, user_id=7)) == "for:user:auth.User:7+client:auth.Group:5"


def test_a_token_in_the_query_or_the_form_is_a_credential(rf: RequestFactory) -> None:
    """As RFC 6750 allows. A form that nobody has read has authenticated nobody."""

    def form(token: str, *, read: bool = True) -> Any:
        request = rf.post("/", {"access_token": token})
        assert not read or request.POST["access_token"] == token
        return request

    requests = [rf.post("/?access_token=a"), rf.post("/?access_token=b"), form("a"), form("b"), rf.post("/")]
    scopes = [scope_of(request, resolve()) for request in requests]
    assert (scopes[0], scopes[1], len(set(scopes)), scopes[4]) == (scopes[2], scopes[3], 3, "anonymous")
    assert scopes[0] == f"?access_token:{sha256(b'a').hexdigest()}"
    assert scope_of(form("a", read=False), resolve()) == "anonymous"
    assert scope_of(rf.post("/?access_token=null"), resolve()) == "anonymous"
    assert scope_of(rf.post("/?" + "a=1&" * 2_000 + "access_token=a"), resolve()) == "anonymous"
    named = scope_with(rf, GET=QueryDict(f"access_token={jwt('shop')}"))
    assert named.startswith("for:user:auth.User:7+sent:")


def test_the_owner_of_a_resource_is_the_caller(rf: RequestFactory) -> None:
    """Whom django-oauth-toolkit sets beside `request.user`. Without one, the client alone has sent the token."""
    assert scope_with(rf, resource_owner=User(pk=8)) == "user:auth.User:8"
    assert scope_with(rf, resource_owner=None) == "anonymous"


def test_a_scope_of_many_parts_keeps_the_prefix_of_its_account(rf: RequestFactory) -> None:
    """Or the keys would not be forgotten with the account. The parts are hashed together."""
    stranger = SimpleNamespace(is_authenticated=True, pk="a" * 90)
    scopes = {scope_with(rf, user=stranger, auth={"iss": "shops", "azp": client}) for client in ("a", "b")}
    prefix = acting_for(f"user:types.SimpleNamespace:{'a' * 90}")
    assert {scope[: len(prefix)] for scope in scopes} == {prefix}
    assert (len(scopes), {len(scope) for scope in scopes}) == (2, {len(prefix) + len("parts:") + 64})


def test_a_client_of_any_name_is_one_part(rf: RequestFactory, partner_key: Any) -> None:
    """What separates parts is escaped in its primary key."""
    row = partner_key(pk=1, user_id=7, client_id="5+issuer:x")
    assert scope_with(rf, auth=row) == "for:user:auth.User:7+client:auth.Group:5%2Bissuer:x"
