"""What becomes of keys that 0.4.0 has stored: the table in docs/upgrading.md, by counting orders."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.models import IdempotencyKey
from tests.callers import identity_urls
from tests.callers.identity_urls import OPAQUE, jwt, send
from tests.callers.scopes_of_0_4_0 import CHANGED, KEPT, OPAQUE_TOKEN, STRANGER, Case, hashed
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.callers.identity_urls")]


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
