"""What the pages show of a key beside its row: how far this person may look, and links to its caller and resource."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from ..engine.stores.sealing import unseal, unseal_response
from ..exceptions import NotDecryptable
from ..maintenance.facts import Facts, facts_of
from ..models import IdempotencyKey
from .story import Story
from .texts import badge, readable_operation, shortened

ACCOUNT = re.compile(r"user:(\w+\.\w+):(.+)")
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
        """The same on each page: the key, and its reference beside it."""
        return f"{self.row.key} ({self.row.reference})" if self.secrets else self.row.reference

    @property
    def badge(self) -> Any:
        return badge(self.facts.state.name)

    @property
    def operation(self) -> str:
        return readable_operation(self.row.operation)

    @property
    def story(self) -> Story:
        return Story(self.facts, unreadable=self._unreadable)

    @property
    def _unreadable(self) -> bool:
        """Whether a retry would raise `NotDecryptable`: it reads the response, or the results of the steps."""
        try:
            unseal_response(self.row)
            for step in self.facts.steps:
                unseal(self.row, "result", step.result, step.name)
        except NotDecryptable:
            return True
        return False


def shown(row: Any) -> Shown:
    """Return what `show` has noted on this row."""
    noted: Shown = row.shown
    return noted


def show(rows: Iterable[IdempotencyKey], model_admin: Any, request: HttpRequest, *, results: bool = False) -> None:
    """Note on each row how this person sees it. Two queries for the steps.

    results: also read the results and errors of the steps.
    """
    secrets = request.user.has_perm("django_idempotency.view_response")
    for facts in facts_of(rows, results=results):
        row: Any = facts.row
        account = ACCOUNT.fullmatch(row.scope)
        caller = _linked(model_admin, request, *account.groups()) if account else None
        resource = "-"
        if row.resource_id:
            type_, id_ = str(row.resource_type or ""), str(row.resource_id)
            resource = _linked(model_admin, request, type_, id_) or shortened(_named(type_, id_), TEXT_LENGTH)
        caller = caller or shortened(row.scope, TEXT_LENGTH)
        row.shown = Shown(facts=facts, secrets=secrets, caller=caller, resource=resource)


def _named(type_: str, id_: str) -> str:
    return f"{type_.rpartition('.')[2].lower()} {id_}".strip()


def _linked(model_admin: Any, request: HttpRequest, type_: str, id_: str) -> Any:
    """The name of an object with a link to its page. None: this admin has no page for this type, or not for this user.

    type_: the label of a model, or its name if only one model in the admin has that name.
    """
    site = model_admin.admin_site
    models = [model for model in site._registry if type_.lower() in (model._meta.label_lower, model._meta.model_name)]
    if len(models) != 1 or not site._registry[models[0]].has_view_permission(request):
        return None
    view = f"admin:{models[0]._meta.app_label}_{models[0]._meta.model_name}_change"
    page = reverse(view, args=[quote(id_)], current_app=site.name)
    return format_html('<a href="{}">{}</a>', page, shortened(_named(type_, id_), TEXT_LENGTH))
