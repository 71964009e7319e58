"""Callers of each kind, for `golden.py`: who sends a request, and what the framework hands on."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

CLAIMS = {"iss": "shops", "sub": "ada", "azp": "app", "roles": ["b", "a"], "org": 3, "exp": 1, "jti": "x"}
HEADERS: dict[str, dict[str, str]] = {
    "nobody": {},
    "bearer": {"Authorization": "Bearer abc"},
    "basic": {"Authorization": "Basic YTpi"},
    "two": {"Authorization": "Bearer abc", "X-Api-Key": "k"},
}
MORE_HEADERS: dict[str, dict[str, str]] = {
    "API key": {"X-Api-Key": "k"},
    "session token": {"X-Session-Token": "s"},
    "access token": {"X-Access-Token": "a"},
    "no scheme": {"Authorization": "abc"},
    "a placeholder": {"Authorization": "Bearer null"},
    "a publishable key": {"Authorization": "Bearer pk_live_abc"},
    "all": {"Authorization": "Token abc", "X-Api-Key": "k", "X-Session-Token": "s", "X-Access-Token": "a"},
}


def jwt(claims: dict[str, Any]) -> str:
    """A token that nobody has signed."""
    parts = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "x"}, claims))
    return ".".join([*parts, "signature"])


def scopes() -> Iterator[tuple[str, Any]]:
    """The scope of each caller."""
    from django.contrib.auth.models import User
    from django.test import RequestFactory

    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.request.callers import scope_of

    def of(headers: dict[str, str] | None = None, path: str = "/", **about: Any) -> str:
        request = RequestFactory().post(path, headers=headers)
        request.COOKIES |= about.pop("cookies", {})
        vars(request).update(about)
        return scope_of(request, resolve())

    for name, headers in HEADERS.items():
        yield f"scope, {name}", of(headers)
    for name, headers in HEADERS.items():
        yield f"scope, user and {name}", of(headers, user=User(pk=7))
    yield from handed_on_scopes()
    for name, headers in MORE_HEADERS.items():
        yield f"scope, {name}", of(headers)
    yield "scope, token in the query", of(path="/?access_token=abc")
    yield "scope, session", of(cookies={"sessionid": "s"})
    browser = {"META": {**RequestFactory().post("/").META, "CSRF_COOKIE": "c"}, "csrf_processing_done": True}
    yield "scope, form of a browser", of(cookies={"csrftoken": "c", "sessionid": "s"}, **browser)
    yield "scope, publishable key and session", of(MORE_HEADERS["a publishable key"], cookies={"sessionid": "s"})
    yield "scope, user whose token nobody hands on", of({"Authorization": f"Bearer {jwt(CLAIMS)}"}, user=User(pk=7))
    yield (
        "scope, user whose token names no client",
        of({"Authorization": f"Bearer {jwt({'sub': 'ada'})}"}, user=User(pk=7)),
    )
    sent = {"Authorization": f"Bearer {jwt(CLAIMS)}", "X-Api-Key": "k"}
    yield "scope, user whose token nobody hands on, and a key", of(sent, user=User(pk=7))
    yield "scope, user of the toolkit's check", of(resource_owner=User(pk=7))


def handed_on_scopes() -> Iterator[tuple[str, Any]]:
    """What an authenticator, or a session, has established."""
    from django.contrib.auth.models import Group, User
    from django.test import RequestFactory

    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.request.callers import HandedOn, scope_of

    token, line = access_token()
    elsewhere = User(pk=7)
    elsewhere._state.db = "other"
    stranger: Any = SimpleNamespace(pk=7, is_authenticated=True, token=jwt(CLAIMS))
    handed = {
        "claims": HandedOn(token=CLAIMS, authenticator="tests.Bearer"),
        "user and claims": HandedOn(user=User(pk=7), token=CLAIMS),
        "text": HandedOn(token="partner", authenticator="tests.ApiKey"),
        "text of any authenticator": HandedOn(token=b"partner"),
        "token as text": HandedOn(token=jwt(CLAIMS), authenticator="tests.Bearer"),
        "claims of Simple JWT": HandedOn(token=SimpleNamespace(payload={"user_id": 7}), authenticator="tests.Bearer"),
        "user and client": HandedOn(user=User(pk=7), token={"client_id": "app"}),
        "user of another database": HandedOn(user=elsewhere),
        "user with a long number": HandedOn(user=User(pk="7" * 300), token={"client_id": "app"}),
        "user in no table": HandedOn(user=stranger),
        "user in no table, claims": HandedOn(user=SimpleNamespace(pk=7, is_authenticated=True), token={"iss": "shops"}),
        "row": HandedOn(token=Group(pk=5)),
        "access token of a client": HandedOn(token=token(pk=1, application_id=5)),
        "access token of a user": HandedOn(token=token(pk=1, user_id=7)),
        "access token of a client for a user": HandedOn(token=token(pk=1, application_id=5, user_id=7)),
        "user and access token": HandedOn(user=User(pk=7), token=token(pk=1, application_id=5, user_id=7)),
        "row with a secret number": HandedOn(token=line(pk="secret")),
    }
    for name, each in handed.items():
        yield f"scope, {name}", scope_of(RequestFactory().post("/"), resolve(), lambda _, each=each: each)


def access_token() -> tuple[Any, Any]:
    """A model of django-oauth-toolkit's kind, and one whose primary key is the token itself."""
    from django.contrib.auth.models import Group, User
    from django.db import models
    from django.test.utils import isolate_apps

    with isolate_apps("tests.shopapp"):
        abstract = type("Meta", (), {"abstract": True, "app_label": "shopapp"})
        meta = type("Meta", (), {"app_label": "shopapp"})
        fields = {
            "user": models.ForeignKey(User, models.CASCADE, null=True, related_name="+"),
            "application": models.ForeignKey(Group, models.CASCADE, null=True, related_name="+"),
        }
        named = {"__module__": "oauth2_provider.models", "Meta": abstract, **fields}
        base = type("AbstractAccessToken", (models.Model,), named)
        token = type("Token", (base,), {"__module__": __name__, "Meta": meta})
        number = models.CharField(max_length=40, primary_key=True)
        return token, type("Key", (models.Model,), {"__module__": __name__, "Meta": meta, "number": number})
