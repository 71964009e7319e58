"""The status page of a leased request: the `Location` of a 202 answer. Its address is `execution.leased.status_url`."""

from __future__ import annotations

from typing import Any

from django.core.signing import BadSignature, Signer
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from ...models import IdempotencyKey
from ..execution.leased import SALT, stamp, status_url
from ..protocol.digests import Identity
from ..stores import store_for
from .problems import IN_PROGRESS, RETRY_AFTER

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


@require_safe
def status(request: HttpRequest, token: str) -> HttpResponse:
    """The state of one request as JSON, without its response and without data of other callers."""
    try:
        alias, key_hash, scope_hash, claimed_at = Signer(salt=SALT).unsign_object(token)
    except (BadSignature, ValueError) as error:
        raise Http404(_("There is no such request.")) from error
    state = _state(alias, key_hash, scope_hash)
    if state is None or stamp(state["created_at"]) != claimed_at:
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
    expired, abandoned = store_for(alias).journal.timeliness(key_hash, scope_hash)
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
