"""What the pages show of a key beside its row: how far this person may look, and links to its caller and resource."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import quote
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from ..maintenance.facts import Facts, facts_of
from ..models import IdempotencyKey
from .story import to_do
from .texts import badge, readable_operation, shortened

ACCOUNT = re.compile(r"user:(?P<model>\w+\.\w+):(?P<pk>.+)")
"""The scope of a user of the default database: see `scope_of_user`."""
TEXT_LENGTH = 24
"""Characters of a caller or of a resource in the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A key as one person sees it.

    Attributes:
        facts: the row, its steps, and what follows from them.
        secrets: whether this person may see responses and results. The key itself is among them: where callers are
            anonymous, the key gets the response.
        caller, resource: HTML, with a link to its own page where this person may see that page.
    """

    facts: Facts
    secrets: bool
    caller: Any
    resource: Any

    @property
    def row(self) -> IdempotencyKey:
        return self.facts.row

    @property
    def name(self) -> str:
        return self.row.key if self.secrets else self.row.reference

    @property
    def badge(self) -> Any:
        return badge(self.facts.state.name)

    @property
    def operation(self) -> str:
        return readable_operation(self.row.operation)

    @property
    def to_do(self) -> str:
        return to_do(self.facts)


def shown(row: Any) -> Shown:
    """Return what `show` has noted on this row."""
    noted: Shown = row.shown
    return noted


def show(rows: Iterable[IdempotencyKey], model_admin: Any, request: HttpRequest, *, results: bool = False) -> None:
    """Note on each row how this person sees it. Two queries for the steps, one for each model of callers.

    results: also read the results and errors of the steps.
    """
    rows, site = list(rows), model_admin.admin_site
    callers = _callers(rows, site, request)
    secrets = may_see_responses(request)
    for facts in facts_of(rows, results=results):
        row: Any = facts.row
        caller = callers.get(row.scope, shortened(row.scope, TEXT_LENGTH))
        resource = _resource(row, site, request) if row.resource_id else "-"
        row.shown = Shown(facts=facts, secrets=secrets, caller=caller, resource=resource)


def may_see_responses(request: HttpRequest) -> bool:
    """Whether this user may see stored responses and results, and the keys that get them."""
    return request.user.has_perm("django_idempotency.view_response")


def _callers(rows: list[IdempotencyKey], site: Any, request: HttpRequest) -> dict[str, Any]:
    """The link of each scope that is an account which this user may see."""
    wanted: dict[type[Model], dict[Any, str]] = defaultdict(dict)
    for scope in {row.scope for row in rows}:
        found = ACCOUNT.fullmatch(scope)
        model = found and _registered(site, found["model"], request)
        if found and model:
            try:
                wanted[model][model._meta.pk.to_python(found["pk"])] = scope
            except ValidationError:
                continue  # a scope= of the project's own
    return {
        scopes[account.pk]: format_html('<a href="{}">{}</a>', _page(site, account), _name(account))
        for model, scopes in wanted.items()
        for account in site.get_model_admin(model).get_queryset(request).filter(pk__in=scopes)
    }


def _name(account: Any) -> Any:
    name = account.get_username() if hasattr(account, "get_username") else str(account)
    return shortened(name, TEXT_LENGTH)


def _resource(row: IdempotencyKey, site: Any, request: HttpRequest) -> Any:
    type_, id_ = str(row.resource_type or ""), str(row.resource_id)
    text = shortened(f"{type_.rpartition('.')[2].lower()} {id_}".strip(), TEXT_LENGTH)
    model = _registered(site, type_, request)
    return text if model is None else format_html('<a href="{}">{}</a>', _page(site, model, id_), text)


def _registered(site: Any, name: str, request: HttpRequest) -> type[Model] | None:
    """The model with this label, or the only one with this name, if this user may see its pages in this admin."""
    if "." in name:
        try:
            models = [apps.get_model(name)]
        except (LookupError, ValueError):
            return None
    else:
        models = [model for model in site._registry if model._meta.model_name == name.lower()]
    if len(models) != 1 or not site.is_registered(models[0]):
        return None
    return models[0] if site.get_model_admin(models[0]).has_view_permission(request) else None


def _page(site: Any, of: Any, pk: Any = None) -> str:
    view = f"admin:{of._meta.app_label}_{of._meta.model_name}_change"
    return reverse(view, args=[quote(of.pk if pk is None else pk)], current_app=site.name)
