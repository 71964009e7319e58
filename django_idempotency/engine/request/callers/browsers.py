"""Which browser sent a request that carries no credential? Its CSRF secret or its session cookie identifies it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends import signed_cookies


def sent_cookies(request: Any) -> dict[str, str]:
    """Return the secret that distinguishes this browser from others, as a dict from its name to its value.

    The dict is empty if the browser sent no such secret.
    """
    unread = "COOKIES" not in vars(getattr(request, "_request", request))
    if unread and not request.META.get("HTTP_COOKIE"):
        return {}
    if getattr(request, "csrf_processing_done", False) and (secret := _form_secret(request)) is not None:
        return {"csrf": secret}
    # This uses the cookie that the client sent, not the key of `request.session`: if the response that sets a new
    # cookie is lost, the retry carries the old one.
    if session := request.COOKIES.get(settings.SESSION_COOKIE_NAME):
        engine = import_module(settings.SESSION_ENGINE)
        # A signed cookie contains the session's data, and changes with it.
        if not issubclass(engine.SessionStore, signed_cookies.SessionStore):
            return {"session": session}
    return {}


def _form_secret(request: Any) -> str | None:
    """Return the secret from a browser's CSRF cookie, or None if Django did not check such a cookie for this request.

    A browser gets the secret together with the form, but often gets its first session cookie only after submitting that
    form. If the session cookie identified the caller, a second click would seem to come from someone else.
    """
    if getattr(request, "_dont_enforce_csrf_checks", False):
        return None
    if settings.CSRF_USE_SESSIONS or settings.CSRF_COOKIE_NAME not in request.COOKIES:
        return None  # with CSRF_USE_SESSIONS, the session cookie comes with the form
    secret: str | None = request.META.get("CSRF_COOKIE")
    return secret
