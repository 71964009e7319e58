"""Decide whether the current user may see a key's secrets, and link its caller and resource to their admin pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..maintenance.facts import Facts, facts_of
from ..models import IdempotencyKey
from .texts import NOTHING, badge, encodable, readable_operation, shortened

ACCOUNT = re.compile(r"user:(\w+\.\w+):(.+)")
"""The scope of a user whose row is in the default database. See `scope_of_user`."""
TEXT_LENGTH = 24
"""How many characters of a caller or a resource the list shows."""
AMOUNTS = ("amount", "total")
"""The names that gateways and carts give to the amount in a step's result."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A key as an admin page shows it to the current user.

    Attributes:
        secrets: whether this person may see responses, results and the key itself. The key is a secret, because an
            anonymous caller needs nothing else to get the stored response.
        caller, resource: HTML, with a link to the object's admin page if this person may see it.
    """

    facts: Facts
    secrets: bool
    caller: Any
    resource: Any

    @property
    def name(self) -> str:
        """The key and its reference, or the reference alone for people who may not see secrets."""
        return f"{self.facts.row.key} ({self.facts.row.reference})" if self.secrets else self.facts.row.reference

    @cached_property
    def amount(self) -> str:
        """The amount and currency that a step has returned, as stored. Empty if no step returned an amount, or if this
        person may not see results.
        """
        for step in self.facts.steps if self.secrets else ():
            with suppress(NotDecryptable, RecursionError, ValueError):
                result = json.loads(unseal(self.facts.row, "result", step.result, step.name) or "null")
                value = result.get("value") if isinstance(result, dict) else None
                if isinstance(value, dict) and (
                    amount := next((value[a] for a in AMOUNTS if _is_sum(value.get(a))), "")
                ):
                    currency = value.get("currency")
                    return encodable(f"{amount} {currency if isinstance(currency, str) else ''}".strip())
        return ""

    @property
    def badge(self) -> Any:
        return badge(self.facts.state.name)

    @property
    def scope(self) -> str:
        return encodable(self.facts.row.scope)

    @property
    def operation(self) -> str:
        return readable_operation(self.facts.row.operation)


def shown(row: Any) -> Shown:
    """Return the `Shown` that `show` has set on this row."""
    noted: Shown = row.shown
    return noted


def show(rows: Iterable[IdempotencyKey], model_admin: Any, request: HttpRequest, **read: bool) -> None:
    """Set `shown` on each row, for the current user.

    This takes at most two queries for all rows: one for the steps, and one for the database's time.

    Args:
        read: what to read of the steps, as in `facts_of`.
    """
    rows, secrets = list(rows), request.user.has_perm("django_idempotency.view_response")
    names = _names(model_admin, request, [row.scope for row in rows])
    for facts in facts_of(rows, **read):
        row: Any = facts.row
        account = ACCOUNT.fullmatch(row.scope)
        caller = _linked(model_admin, request, *account.groups(), name=names.get(row.scope)) if account else None
        resource: Any = NOTHING
        if row.resource_id:
            type_, id_ = str(row.resource_type or ""), str(row.resource_id)
            resource = _linked(model_admin, request, type_, id_) or shortened(_named(type_, id_), TEXT_LENGTH)
        caller = caller or shortened(row.scope, TEXT_LENGTH)
        row.shown = Shown(facts=facts, secrets=secrets, caller=caller, resource=resource)


def _named(type_: str, id_: str) -> str:
    return f"{type_.rpartition('.')[2].lower()} {id_}".strip()


def _is_sum(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and len(str(value)) < TEXT_LENGTH


def _names(model_admin: Any, request: HttpRequest, scopes: list[str]) -> dict[str, str]:
    """Return the user name for each scope of a user whom this person may see, in one query."""
    users = get_user_model()
    page = model_admin.admin_site._registry.get(users)
    if page is None or not page.has_view_permission(request):
        return {}
    scope_of: dict[Any, str] = {}
    for scope in scopes:
        account = ACCOUNT.fullmatch(scope)
        if account and account[1].lower() == users._meta.label_lower:
            with suppress(TypeError, ValidationError, ValueError):  # a project's own scope that looks like ours
                scope_of[users._meta.pk.to_python(account[2])] = scope
    rows = users._default_manager.using(DEFAULT_DB_ALIAS).filter(
        reduce(or_, (Q(pk=pk) for pk in scope_of), Q(pk__in=[]))
    )
    return {scope_of[user.pk]: user.get_username() for user in rows if user.pk in scope_of}


def _linked(model_admin: Any, request: HttpRequest, type_: str, id_: str, *, name: str | None = None) -> Any:
    """Link to an object's admin page, or return None if there is no such page or the user may not see it.

    Args:
        type_: a model's label, or just its name if only one model in the admin has that name.
        name: the text of the link; default: the model's name and the id.
    """
    site = model_admin.admin_site
    models = [model for model in site._registry if type_.lower() in (model._meta.label_lower, model._meta.model_name)]
    if len(models) != 1 or not site._registry[models[0]].has_view_permission(request):
        return None
    view = f"admin:{models[0]._meta.app_label}_{models[0]._meta.model_name}_change"
    page = reverse(view, args=[quote(id_)], current_app=site.name)
    return format_html('<a href="{}">{}</a>', page, shortened(name or _named(type_, id_), TEXT_LENGTH))
