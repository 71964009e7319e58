"""The page about callers: each row of its table of ways to log in is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path

from django_idempotency.models import IdempotencyKey
from tests.acceptance.pages import ROOT
from tests.callers.identity_urls import NINJA_INSTALLED, OPAQUE, jwt, send
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.identity_urls")]
Send = Callable[..., Any]
SAME, ANOTHER, TWO, ONE, NONE = "the same caller", "another caller", "two callers", "one caller", "–"


def rows() -> Iterator[list[str]]:
    text = (ROOT / "docs/callers.md").read_text().partition("## Ways to log in")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    yield from ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:])


def with_jwt(url: str) -> Send:
    def ask(sub: Any, client: Any = None, number: int = 1, **more: Any) -> Any:
        claims = {"sub": str(sub), "jti": number} | ({} if client is None else {"azp": client}) | more
        return send(url, Authorization=f"Bearer {jwt(**claims)}")

    return ask


def opaque(url: str) -> Send:
    def ask(sub: Any, client: Any = None, number: int = 1, **more: Any) -> Any:
        return send(url, Authorization=f"Bearer {OPAQUE}{sub}-{client}-{number}")

    return ask


def session(sub: Any, client: Any = None, number: int = 1, **more: Any) -> Any:
    return send("/plain/row", session=User.objects.get(pk=sub))


ELSEWHERE = "django-oauth-toolkit, in each of its ways"
"""Run by test_access_packages.py, in a process with that package."""
REST, NINJA = "REST framework: ", "Ninja: an authenticator that "
RUN: dict[str, tuple[Send, Send | None]] = {
    "Django's session": (session, None),
    "a middleware that checks an opaque token and sets `request.user`": (
        opaque("/plain/row"),
        opaque("/plain/stranger"),
    ),
    "a middleware that checks a JWT and sets `request.user`": (with_jwt("/plain/row"), with_jwt("/plain/stranger")),
    "your own check of a header, which sets no user": (with_jwt("/plain/bare"), None),
}
if REST_FRAMEWORK_INSTALLED:
    RUN |= {
        f"{REST}a class that returns the user and the JWT or its claims, like Simple JWT's": (
            with_jwt("/rest/claims"),
            with_jwt("/rest/stranger-claims"),
        ),
        f"{REST}a class that checks a JWT and returns the user and `None`": (
            with_jwt("/rest/none"),
            with_jwt("/rest/stranger-none"),
        ),
        f"{REST}a class that checks an opaque token and returns the user": (
            opaque("/rest/none"),
            opaque("/rest/stranger-none"),
        ),
        f"{REST}a class that returns no user and a JWT or its claims": (with_jwt("/rest/alone-text"), None),
        f"{REST}a class that returns no user and another text": (opaque("/rest/alone-text"), None),
    }
if NINJA_INSTALLED:
    RUN |= {
        f"{NINJA}checks a JWT and returns the user": (with_jwt("/ninja/row"), with_jwt("/ninja/stranger")),
        f"{NINJA}sets `request.user` and returns the JWT": (with_jwt("/ninja/sets"), with_jwt("/ninja/sets-stranger")),
        f"{NINJA}returns a JWT or its claims": (with_jwt("/ninja/alone-text"), None),
        f"{NINJA}returns another text": (opaque("/ninja/alone-text"), None),
    }


def test_each_row_is_run() -> None:
    """Those of frameworks that are installed."""
    known = {row[0] for row in rows() if REST_FRAMEWORK_INSTALLED or not row[0].startswith(REST)}
    assert {row for row in known if NINJA_INSTALLED or not row.startswith("Ninja")} == {*RUN, ELSEWHERE}


@pytest.mark.parametrize("name", RUN)
def test_a_row_says_what_happens(name: str, settings: Any) -> None:
    """When the token is renewed, with two clients of one user, and with a user in no table of two issuers."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.callers.identity_urls.by_token"]
    _, _, renewed, clients, stranger = next(row for row in rows() if row[0] == name)
    ask, unknown = RUN[name]
    ada, bob = (User.objects.create_user(user).pk for user in ("ada", "bob"))
    assert ask(ada) == "false"
    assert {"true": SAME, "false": ANOTHER}[ask(ada, number=2)] == renewed
    assert ask(bob) == "false"
    IdempotencyKey.objects.all().delete()
    assert ask(ada, "A") == "false"
    assert {"true": ONE, "false": TWO}[ask(ada, "B")] == clients
    if unknown is not None:
        found = [unknown(17, iss=issuer) for issuer in ("shops", "partners", "shops")]
        told = {"[403, 403, 403]": "refused", "['false', 'false', 'true']": "the issuer, too"}
        assert told.get(str(found), "its class and primary key") == stranger
        assert unknown(18, iss="shops") == found[0]


@pytest.mark.urls("documented_urls")
def test_a_rotated_key_of_an_organisation_is_the_same_caller(run: Any, serve: Any, client: Client) -> None:
    """And another organisation is another one."""
    serve(path("orders/", run("docs/callers.md", "shop/organisations.py").create_order))
    keys = ("key of January", "key of February", "key of a rival", "unknown")
    answers = [client.post("/orders/", headers={"X-Api-Key": key, "Idempotency-Key": "k"}) for key in keys]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 401]
    assert [answer["Idempotency-Replayed"] for answer in answers[:3]] == ["false", "true", "false"]
