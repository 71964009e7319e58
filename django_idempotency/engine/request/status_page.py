"""The status page of a leased request: the `Location` of a 202 answer.

The URL is signed. So every client that got the URL may read the page, and no client can guess one. The URL carries the
time at which the key was claimed, so it dies with its row: when the key expires, is erased, or is claimed anew.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.signing import BadSignature, Signer
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import NoReverseMatch, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.digests import Identity
from ..stores import store_for
from .problems import IN_PROGRESS, RETRY_AFTER

SALT = "django_idempotency.status"
ABANDONED = "abandoned"
"""Reported for a key in progress that its worker has left: a retry takes it over, or a person decides."""


def accepted(alias: str, identity: Identity) -> HttpResponse:
    """The answer to a duplicate of a running request: 202, its state, and where to ask again.

    The row may be gone already. Then the page answers 404 from the start, and the client sends its request again.
    """
    hashes = identity.key_hash, identity.scope_hash
    state = _state(alias, *hashes) or {"status": IdempotencyKey.Status.IN_PROGRESS.value}
    # The code tells this answer from a 202 of the view itself.
    response = JsonResponse({"code": IN_PROGRESS, **state}, status=202)
    response.headers["Location"] = status_url(alias, *hashes, state.get("created_at"))
    response.headers["Retry-After"] = RETRY_AFTER
    return response


def status_url(alias: str, key_hash: int, scope_hash: int, created_at: datetime | None) -> str:
    """The path of a key's status page.

    Args:
        created_at: of the row. None: there is no row, and there will be no page.

    Raises:
        IdempotencyConfigurationError: the project's routes do not include the page.
    """
    token = Signer(salt=SALT).sign_object([alias, key_hash, scope_hash, _stamp(created_at)])
    try:
        return reverse("django_idempotency:status", args=[token])
    except NoReverseMatch as error:
        raise IdempotencyConfigurationError(
            "in_progress_status=202 needs the status page. Add it to the urlpatterns of the project: "
            'path("idempotency/", include("django_idempotency.urls")).'
        ) from error


def _stamp(created_at: datetime | None) -> str | None:
    return None if created_at is None else created_at.isoformat()


@require_safe
def status(request: HttpRequest, token: str) -> HttpResponse:
    """The state of one request as JSON, without its response and without data of other callers."""
    try:
        alias, key_hash, scope_hash, stamp = Signer(salt=SALT).unsign_object(token)
    except (BadSignature, ValueError) as error:
        raise Http404(_("There is no such request.")) from error
    state = _state(alias, key_hash, scope_hash)
    if state is None or _stamp(state["created_at"]) != stamp:
        raise Http404(_("There is no such request."))
    response = JsonResponse(state)
    add_never_cache_headers(response)
    if state["status"] == IdempotencyKey.Status.IN_PROGRESS:
        response.headers["Retry-After"] = RETRY_AFTER
    return response


def _state(alias: str, key_hash: int, scope_hash: int) -> dict[str, Any] | None:
    rows = IdempotencyKey.objects.using(alias).filter(key_hash=key_hash, scope_hash=scope_hash)
    row = rows.only("status", "attempt", "created_at", "completed_at", "expires_at").first()
    if row is None:
        return None
    expired, abandoned = store_for(alias).timeliness(key_hash, scope_hash)
    if expired:
        return None
    steps = row.steps.using(alias).exclude(finished_at=None).order_by("pk")
    return {
        "status": ABANDONED if abandoned else row.status,
        "attempt": row.attempt,
        "steps": list(steps.values_list("name", flat=True)),
        "created_at": row.created_at,
        "completed_at": row.completed_at,
        "expires_at": row.expires_at,
    }
