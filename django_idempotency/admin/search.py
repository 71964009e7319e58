"""The search: by key, reference, resource or caller, each by an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth import get_permission_codename, get_user_model

from ..maintenance.erasure import scope_of_user
from ..maintenance.lookups import find_key, refers_to
from . import overview

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from ..models import IdempotencyKey

    Keys = QuerySet[IdempotencyKey]


def search(keys: Keys, term: str, request: HttpRequest) -> Keys:
    """Return those of the keys that the text names: 2,000 of each kind at most, in the order of an index."""
    text = term.strip()
    if not text:
        return keys
    named = find_key(text, using=keys.db).order_by("key_hash", "scope_hash")
    about = keys.filter(refers_to(text)).order_by("resource_id", "resource_type")
    parts = [named, about]
    if scopes := _scopes(text, request):
        sent = keys.filter(scope__in=scopes)
        # The index on `scope` does not know which keys are the newest.
        parts += [overview.latest(sent, overview.FILTERED).order_by("-pk"), sent.order_by("scope")]
    found = {pk for part in parts for pk in part.values_list("pk", flat=True)[: overview.LISTED]}
    return keys.filter(pk__in=found)


def _scopes(text: str, request: HttpRequest) -> set[str]:
    """The scope as the page shows it, or that of the user with this name, for those who may see users."""
    users = get_user_model()
    scopes = {text} if ":" in text or text == "anonymous" else set()
    if request.user.has_perm(f"{users._meta.app_label}.{get_permission_codename('view', users._meta)}"):
        for user in users._default_manager.filter(**{users.USERNAME_FIELD: text})[:1]:
            scopes.add(scope_of_user(user))
    return scopes
