"""What becomes of keys that 0.4.0 has stored: the table in docs/upgrading.md, by counting orders."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey
from tests.callers import identity_urls
from tests.callers.identity_urls import NINJA_INSTALLED, OPAQUE, jwt, send
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.identity_urls")]
USER, STRANGER = "user:auth.User:{ada}", "user:tests.callers.identity_urls.Stateless:17"
OPAQUE_TOKEN = f"{OPAQUE}17-A-1"


def hashed(kind: str, text: str) -> str:
    return f"{kind}:{sha256(text.encode()).hexdigest()}"


def returned(token: str) -> str:
    """The text that an authenticator returned."""
    return hashed("auth", f"tests.callers.identity_urls.Jwt\n{token}")


def with_client(token: str) -> str:
    return f"for:{USER}+{hashed('client', 'A')}"


Case = tuple[str, dict[str, Any] | None, Callable[[str], str]]
"""A path, the claims of the JWT (None: an opaque token), and the scope that 0.4.0 gave to it."""
KEPT: dict[str, Case] = {
    "a user": ("/plain/row", {}, lambda token: USER),
    "a token in a header": ("/plain/bare", {"azp": "A"}, lambda token: hashed("authorization", f"bearer {token}")),
}
CHANGED: dict[str, Case] = {"a client whose token isn't handed on": ("/plain/row", {"azp": "A"}, with_client)}
if REST_FRAMEWORK_INSTALLED:
    issued = {"sub": "17", "iss": "shops"}
    KEPT |= {
        "a client whose token is handed on": ("/rest/text", {"azp": "A"}, with_client),
        "a user in no table": (
            "/rest/stranger-claims",
            issued,
            lambda token: f"for:{STRANGER}+{hashed('issuer', 'shops')}",
        ),
        "a text without a user": ("/rest/alone-text", None, returned),
    }
    CHANGED |= {
        "a JWT without a user": ("/rest/alone-text", issued, returned),
        "a user in no table who carries the token": ("/rest/stranger-token", issued, lambda token: STRANGER),
        "a user in no table whose token is bytes": ("/rest/stranger-bytes", issued, lambda token: STRANGER),
    }
if NINJA_INSTALLED:
    CHANGED["a user who is set beside the token, in Ninja"] = ("/ninja/sets", {}, returned)


def stored_by_then(scope: str) -> None:
    """Give the one key the scope that 0.4.0 has stored it under."""
    row = IdempotencyKey.objects.get()
    then = identify(scope=scope, operation=row.operation, key=row.key)
    IdempotencyKey.objects.update(scope=then.scope, scope_hash=then.scope_hash)


def runs_across_the_upgrade(case: Case, settings: Any) -> int:
    """How often the view runs for a request and its retry, if 0.4.0 has stored the key of the first one."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.callers.identity_urls.by_token"]
    identity_urls.RUNS.clear()
    path, claims, scope = case
    ada = User.objects.create_user("ada").pk
    token = OPAQUE_TOKEN if claims is None else jwt(**{"sub": str(ada)} | claims)
    assert send(path, Authorization=f"Bearer {token}") == "false"
    stored_by_then(scope(token).format(ada=ada))
    send(path, Authorization=f"Bearer {token}")
    return len(identity_urls.RUNS)


@pytest.mark.parametrize("caller", KEPT)
def test_a_caller_who_is_still_the_same_gets_the_stored_response(caller: str, settings: Any) -> None:
    """One order."""
    assert runs_across_the_upgrade(KEPT[caller], settings) == 1


@pytest.mark.parametrize("caller", CHANGED)
def test_a_caller_whose_scope_has_changed_runs_again(caller: str, settings: Any) -> None:
    """Two orders, as the page says."""
    assert runs_across_the_upgrade(CHANGED[caller], settings) == 2


@pytest.mark.skipif(not REST_FRAMEWORK_INSTALLED, reason="REST framework is not installed")
def test_a_user_in_no_table_whose_jwt_nobody_hands_on_is_refused() -> None:
    """One order, and 403."""
    identity_urls.RUNS.clear()
    assert send("/rest/stranger-none", Authorization=f"Bearer {OPAQUE}17-A-1") == "false"
    assert IdempotencyKey.objects.get().scope == STRANGER  # as 0.4.0 stored a JWT's user
    assert send("/rest/stranger-none", Authorization=f"Bearer {jwt(sub='17', iss='shops')}") == 403
    assert len(identity_urls.RUNS) == 1


def test_a_browser_gets_the_stored_response() -> None:
    """One order: its session's cookie is the same scope."""
    identity_urls.RUNS.clear()
    assert send("/plain/bare", Cookie="sessionid=abc") == "false"
    stored_by_then(hashed("session", "abc"))
    assert send("/plain/bare", Cookie="sessionid=abc") == "true"


@pytest.mark.parametrize("header", ["X-Session-Token", "X-Access-Token"])
def test_a_header_that_is_a_credential_now_makes_another_caller(header: str) -> None:
    """Two orders, where nobody has set a user."""
    identity_urls.RUNS.clear()
    assert send("/plain/bare", **{header: "a"}) == "false"
    assert IdempotencyKey.objects.get().scope == hashed(header.lower(), "a")
    stored_by_then("anonymous")
    send("/plain/bare", **{header: "a"})
    assert len(identity_urls.RUNS) == 2


def test_a_token_in_the_query_makes_another_caller() -> None:
    """Two orders: in 0.4.0, its senders were anonymous."""
    identity_urls.RUNS.clear()
    address = "/plain/bare?access_token=a"
    assert send(address) == "false"
    stored_by_then("anonymous")
    assert send(address) == "false"
    assert len(identity_urls.RUNS) == 2
