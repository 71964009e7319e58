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


OAUTH = "django-oauth-toolkit's token, in each of its ways"
"""Run by test_access_packages.py, in a process with that package."""
BARE = "nothing: your view checks a header"
USER, JWT_ONLY = "a user, by a session or an opaque token", "a user, by a JWT that it keeps to itself"
BOTH = "a user, and hands on the JWT or its claims, like Simple JWT"
CLAIMS, TEXT = "no user, and hands on a JWT or its claims", "no user, and hands on another text"
Way = tuple[str, Send, Send | None]
"""What is asked, for a user of the table and for one in no table."""
WAYS: dict[str, list[Way]] = {
    USER: [("session", session, None), ("middleware", opaque("/plain/row"), opaque("/plain/stranger"))],
    JWT_ONLY: [("middleware", with_jwt("/plain/row"), with_jwt("/plain/stranger"))],
    BOTH: [],
    CLAIMS: [],
    TEXT: [],
    BARE: [("view", with_jwt("/plain/bare"), None)],
}
if REST_FRAMEWORK_INSTALLED:
    WAYS[USER].append(("rest", opaque("/rest/none"), opaque("/rest/stranger-none")))
    WAYS[JWT_ONLY].append(("rest", with_jwt("/rest/none"), with_jwt("/rest/stranger-none")))
    WAYS[BOTH].append(("rest", with_jwt("/rest/claims"), with_jwt("/rest/stranger-claims")))
    WAYS[CLAIMS].append(("rest", with_jwt("/rest/alone-text"), None))
    WAYS[TEXT].append(("rest", opaque("/rest/alone-text"), None))
if NINJA_INSTALLED:
    WAYS[JWT_ONLY].append(("ninja", with_jwt("/ninja/row"), with_jwt("/ninja/stranger")))
    WAYS[BOTH].append(("ninja", with_jwt("/ninja/sets"), with_jwt("/ninja/sets-stranger")))
    WAYS[CLAIMS].append(("ninja", with_jwt("/ninja/alone-text"), None))
    WAYS[TEXT].append(("ninja", opaque("/ninja/alone-text"), None))
RUN = [pytest.param(row, ask, unknown, id=f"{row}: {way}") for row, ways in WAYS.items() for way, ask, unknown in ways]


def test_each_row_is_run() -> None:
    """In each way that establishes as much, of the frameworks that are installed."""
    assert {row[0] for row in rows()} == {*WAYS, OAUTH}
    assert {row for row, ways in WAYS.items() if not ways} <= {BOTH, CLAIMS, TEXT}
    assert all(WAYS.values()) or not (REST_FRAMEWORK_INSTALLED or NINJA_INSTALLED)


@pytest.mark.parametrize(("name", "ask", "unknown"), RUN)
def test_a_row_says_what_happens(name: str, ask: Send, unknown: Send | None, settings: Any) -> None:
    """When the token is renewed, with two clients of one user, and with a user in no table of two issuers."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.callers.identity_urls.by_token"]
    _, renewed, clients, stranger = next(row for row in rows() if row[0] == name)
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
