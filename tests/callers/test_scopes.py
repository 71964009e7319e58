"""How the sources of identity make up one scope."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import access_tokens, jwts, oauth_toolkit, scope_of, tokens


@pytest.mark.parametrize(
    ("user", "asked"),
    [
        (None, set()),
        (User(pk=7), {"oauth_toolkit.may_know", "jwts.claimed", "jwts._sent", "jwts.tokens_in"}),
    ],
    ids=["anonymous", "session"],
)
def test_sources_that_can_know_nothing_are_not_asked(rf: RequestFactory, user: Any, asked: set[str]) -> None:
    """Without a token, only the headers may name a client of the user; without a user, nothing may."""
    request, found = rf.post("/", {"amount": 1}), set()
    request.user = user or AnonymousUser()
    modules = jwts, access_tokens, tokens, oauth_toolkit
    sources = {module.__file__: module.__name__.rpartition(".")[2] for module in modules}

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in sources:
            found.add(f"{sources[code.co_filename]}.{code.co_name}")

    sys.setprofile(note)
    try:
        scope_of(request, resolve())
    finally:
        sys.setprofile(None)
    assert {name for name in found if "<" not in name} == asked
