"""What a page needs beside its stored headers and body: what middleware does to it, its language, its nonce."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils.translation import gettext, override
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.csrf import csrf_exempt, ensure_csrf_cookie
from django.views.decorators.gzip import gzip_page

from django_idempotency import idempotent
from tests.http import replayed

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
FRAMES, LOCALE = "django.middleware.clickjacking.XFrameOptionsMiddleware", "django.middleware.locale.LocaleMiddleware"


@gzip_page
@xframe_options_exempt
@ensure_csrf_cookie
@csrf_exempt
@idempotent
def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("<p>Thank you.</p>" * 50, status=201)


@idempotent
def greet(request: HttpRequest) -> HttpResponse:
    with override(request.GET.get("render_in") or request.headers["Accept-Language"]):
        response = HttpResponse(gettext("Yes"), status=201)
    if "own" in request.GET:
        response.headers["Content-Language"] = request.GET["own"]
    return response


@idempotent
def challenge(request: HttpRequest) -> HttpResponse:
    nonce = secrets.token_urlsafe(16)
    response = HttpResponse(f'<script nonce="{nonce}">document.forms[0].submit()</script>', status=201)
    response.headers["Content-Security-Policy"] = f"default-src 'none'; script-src 'nonce-{nonce}'"
    return response


urlpatterns = [path("page", page), path("greet", greet), path("challenge", challenge)]


@override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, FRAMES])
def test_decorators_above_act_on_a_replay(client: Client, post: Post) -> None:
    """It is compressed for those who can read that, its frame stays open, and it has the cookie that was lost."""
    first = post("/page", headers={"Accept-Encoding": "gzip"})
    client.cookies.clear()
    second = post("/page", headers={"Accept-Encoding": "identity"})
    assert (first.headers["Content-Encoding"], replayed(second)) == ("gzip", "true")
    assert "Content-Encoding" not in second.headers
    assert second.content == b"<p>Thank you.</p>" * 50
    for response in (first, second):
        assert "X-Frame-Options" not in response.headers
        assert "csrftoken" in response.cookies


@pytest.mark.parametrize(
    ("middleware", "query", "said"),
    [([LOCALE], "", "de"), ([LOCALE], "?own=de-AT", "de-AT"), ([], "", None), ([LOCALE], "?render_in=fr", "de")],
)
def test_a_replay_says_the_language_of_its_body(
    settings: Any, post: Post, middleware: list[str], query: str, said: str | None
) -> None:
    """Not that of the retry. What the first client gets is what it gets without the package."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, *middleware]
    answers = [post(f"/greet{query}", headers={"Accept-Language": language}) for language in ("de", "en")]
    assert [replayed(answer) for answer in answers] == ["false", "true"]
    assert [answer.headers.get("Content-Language") for answer in answers] == [said, said]
    assert len({answer.content for answer in answers}) == 1


def test_a_page_keeps_the_nonce_that_its_own_policy_names(settings: Any, post: Post) -> None:
    """So its script runs on a replay, too. Django's middleware leaves a policy of the view alone."""
    pytest.importorskip("django.middleware.csp", reason="Django 6.0 and newer")
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.csp.ContentSecurityPolicyMiddleware"]
    settings.SECURE_CSP = {"default-src": ["'self'"]}
    first, second = post("/challenge"), post("/challenge")
    (nonce,) = re.findall(r'nonce="(.+?)"', second.content.decode())
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'"
    assert [answer.headers["Content-Security-Policy"] for answer in (first, second)] == [policy, policy]
    assert replayed(second) == "true"
