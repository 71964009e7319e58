"""Each caller of the table in docs/upgrading.md: first a request to 0.4.0 itself, then the retry to this release."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from django_idempotency.models import IdempotencyKey
from tests.callers.identity_urls import jwt, send
from tests.callers.scopes_of_0_4_0 import CHANGED, KEPT, OPAQUE_TOKEN, STRANGER, Case
from tests.databases.upgrades.releases import Release
from tests.settings import REST_FRAMEWORK_INSTALLED

URLS = "tests.callers.identity_urls"
BY_TOKEN = f"{URLS}.by_token"
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(URLS), pytest.mark.timeout(300)]
REFUSED: dict[str, Case] = {}
if REST_FRAMEWORK_INSTALLED:
    REFUSED["a user in no table"] = ("/rest/stranger-none", {"sub": "17", "iss": "shops"}, lambda token: STRANGER)


def test_who_is_still_the_same(release_0_4_0: Release, settings: Any) -> None:
    """The scopes are what 0.4.0 has stored; a retry is replayed, runs again or is refused, as the page says."""
    shop = {"SHOP_URLS": URLS, "SHOP_MIDDLEWARE": json.dumps([BY_TOKEN])}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, BY_TOKEN]
    ada = User.objects.create_user("ada").pk
    expected = dict.fromkeys(KEPT, "true") | dict.fromkeys(CHANGED, "false") | dict.fromkeys(REFUSED, 403)
    found: dict[str, Any] = {}
    with Release(release_0_4_0.folder, shop).serving(1) as old:
        for caller, (path, claims, scope) in (KEPT | CHANGED | REFUSED).items():
            token = OPAQUE_TOKEN if claims is None else jwt(**{"sub": str(ada)} | claims)
            key, bearer = str(uuid4()), f"Bearer {token}"
            headers = {"Idempotency-Key": key, "Authorization": bearer, "Content-Type": "application/json"}
            first = old.post(path, content=b"{}", headers=headers)
            assert (first.status_code, first.headers["Idempotency-Replayed"]) == (200, "false"), caller
            assert IdempotencyKey.objects.get(key=key).scope == scope(token).format(ada=ada), caller
            found[caller] = send(path, key=key, Authorization=bearer)
    assert found == expected
