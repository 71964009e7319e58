"""Which application of django-oauth-toolkit acts for the user, if no authenticator returns the token?

The toolkit's own check answers this. The toolkit is imported only in projects that have it installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import apps
from django.db.models import Model

from .access_tokens import belongs_to, client_of
from .credentials import access_token
from .parts import NOTHING, HandedOn, Verified


def may_know(request: Any) -> bool:
    """Return whether the toolkit is installed, or the request has the token that the toolkit's middleware sets."""
    return apps.is_installed("oauth2_provider") or hasattr(request, "access_token")


def verified(request: Any, handed: HandedOn) -> Verified:
    """Return the client of the request's access token. It must belong to the user, or to nobody if there is no user."""
    row = getattr(request, "access_token", None)  # set by OAuth2ExtraTokenMiddleware, which doesn't check the expiry
    if isinstance(row, Model) and belongs_to(row, handed.user) and not getattr(row, "is_expired", bool)():
        return Verified(client=client_of(row))
    scheme = request.META.get("HTTP_AUTHORIZATION", "").split()[:1]
    sent = scheme[0].lower() == "bearer" if scheme else access_token(request)
    if not sent or not apps.is_installed("oauth2_provider"):
        return NOTHING
    backends = import_module("oauth2_provider.oauth2_backends")
    _, checked = backends.get_oauthlib_core().verify_request(request, scopes=[])
    row = getattr(checked, "access_token", None)
    # A request with one user's session may carry another user's token. That token doesn't say who acts for the
    # session's user.
    return Verified(client=client_of(row)) if isinstance(row, Model) and belongs_to(row, handed.user) else NOTHING
