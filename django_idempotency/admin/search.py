"""The search: by key, reference, resource or caller, each by an index or within the latest keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.db.models import Q

from ..maintenance.erasure import scope_of_user
from ..maintenance.lookups import find_key
from . import limits
from .attention import find
from .filters import latest

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import IdempotencyKey

    Keys = QuerySet[IdempotencyKey]


def search(keys: Keys, term: str) -> Keys:
    """Return those of the keys that the text names: 2,000 of each kind at most, in the order of an index."""
    text = term.strip()
    if not text:
        return keys
    found = {pk for part in (_named(keys, text), _about(keys, text)) for pk in _some(part)}
    return keys.filter(pk__in=[*found, *_sent_by(keys, text)])


def _some(keys: Keys) -> list[int]:
    return list(keys.values_list("pk", flat=True)[: limits.LISTED])


def _named(keys: Keys, text: str) -> Keys:
    """By key or reference: the leading column of the unique index."""
    return find_key(text, using=keys.db).order_by("key_hash", "scope_hash")


def _about(keys: Keys, text: str) -> Keys:
    """By resource: "59", "order 59", "shop.Order 59". The ID is the leading column of a partial index."""
    type_, _space, id_ = text.rpartition(" ")
    by_both = Q(resource_type__iexact=type_.strip()) | Q(resource_type__iendswith=f".{type_.strip()}")
    about = Q(resource_id=text) | (Q(resource_id=id_) & by_both) if type_ else Q(resource_id=text)
    return keys.filter(about).order_by("resource_id", "resource_type")


def _sent_by(keys: Keys, text: str) -> list[int]:
    """By user name or scope: no index has callers, so among the latest keys, and all that need attention."""
    scopes = {text} if ":" in text or text == "anonymous" else set()
    users = get_user_model()
    for user in users._default_manager.filter(**{users.USERNAME_FIELD: text})[:1]:
        scopes.add(scope_of_user(user))
    if not scopes:
        return []
    of_caller = keys.filter(scope__in=scopes)
    return [
        *_some(latest(of_caller, limits.FILTERED).order_by("-pk")),
        *find("attention", of_caller).ids[: limits.LISTED],
    ]
