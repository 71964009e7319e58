"""The client that a token names is part of the scope, whatever package the token is of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import models
from django.test import RequestFactory
from django.test.utils import isolate_apps

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import auth_scope, scope_of
from tests.security.caller_urls import jwt


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


@pytest.mark.parametrize("claim", ["client_id", "azp"])
def test_two_clients_of_one_user_are_two_callers_by_the_text_of_their_jwt(rf: RequestFactory, claim: str) -> None:
    """In `request.auth`, or only in the header; both are one client."""
    scopes = [scope_with(rf, auth=jwt(client, claim)) for client in ("shop", "app")]
    assert [scope_with(rf, {"Authorization": f"Bearer {jwt(client, claim)}"}) for client in ("shop", "app")] == scopes
    assert len(set(scopes)) == 2
    assert all(text.startswith("for:user:auth.User:7+client:") for text in scopes)


@pytest.mark.parametrize("text", ["opaque", "a.b", "a.!.c", "a.bnVsbA.c", "a.gICA.c", f"a.{'W1tb' * 20000}.c", ""])
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
