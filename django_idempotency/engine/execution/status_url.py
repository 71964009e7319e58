"""The address of a key's status page. The page itself is `request.status_page`.

The URL is signed. So every client that got the URL may read the page, and no client can guess one. The URL carries the
time at which the key was claimed, so it dies with its row: when the key expires, is erased, or is claimed anew.
"""

from __future__ import annotations

from datetime import datetime

from django.core.signing import Signer
from django.urls import NoReverseMatch, reverse

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.digests import Identity
from ..protocol.outcomes import Claimed

SALT = "django_idempotency.status"


def status_url_of(alias: str, row: Claimed | Identity) -> str:
    """The path of the status page of a row that the caller has claimed. Reads the row's time once.

    Raises:
        IdempotencyConfigurationError: the project's routes do not include the page.
    """
    rows = IdempotencyKey.objects.using(alias).filter(key_hash=row.key_hash, scope_hash=row.scope_hash)
    return status_url(alias, row.key_hash, row.scope_hash, rows.values_list("created_at", flat=True).first())


def status_url(alias: str, key_hash: int, scope_hash: int, created_at: datetime | None) -> str:
    """The path of a key's status page.

    Args:
        alias: the database alias of the key.
        key_hash: of the row.
        scope_hash: of the row.
        created_at: of the row. None: there is no row, and there will be no page.

    Raises:
        IdempotencyConfigurationError: the project's routes do not include the page.
    """
    token = Signer(salt=SALT).sign_object([alias, key_hash, scope_hash, stamp(created_at)])
    try:
        return reverse("django_idempotency:status", args=[token])
    except NoReverseMatch as error:
        raise IdempotencyConfigurationError(
            "the status page of a key (in_progress_status=202, operation.status_url) has no address. Add the page to "
            'the urlpatterns of the project: path("idempotency/", include("django_idempotency.urls")).'
        ) from error


def stamp(created_at: datetime | None) -> str | None:
    """The time of a claim, as the address carries it."""
    return None if created_at is None else created_at.isoformat()
