"""Who may see what on these pages."""

from __future__ import annotations

from django.http import HttpRequest

RESOLVE = "django_idempotency.resolve_idempotencykey"


def may_see_responses(request: HttpRequest) -> bool:
    """Whether this user may see stored responses and results, and the keys that get them."""
    return request.user.has_perm("django_idempotency.view_response")


def may_resolve(request: HttpRequest) -> bool:
    """Whether this user may take decisions."""
    return request.user.has_perm(RESOLVE)
