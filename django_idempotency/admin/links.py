"""This module finds out whether a person may see the secrets of a key. The module also makes the links to the caller
and to the resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from ..maintenance.facts import facts_of
from ..models import IdempotencyKey
from .story import Story
from .texts import badge, encodable, readable_operation, shortened

ACCOUNT = re.compile(r"user:(\w+\.\w+):(.+)")
"""This pattern matches the scope of a user whose row is in the default database, see `scope_of_user`."""
TEXT_LENGTH = 24
"""How many characters of a caller or of a resource the list shows."""


@dataclass(frozen=True, kw_only=True)
class Shown(Story):
    """An admin page uses a `Shown` object to show one key. The object also says whether the current user may see the
    secrets of the key.

    Attributes:
        secrets: whether this person may see responses, results and the key itself. The key is a secret, because an
            anonymous caller needs only the key to get the stored response.
        caller, resource: HTML. The HTML has a link to a page of the admin if this person may see that page.
    """

    secrets: bool
    caller: Any
    resource: Any

    @property
    def name(self) -> str:
        """Return the text that names the key on an admin page. The text contains the key and the key's reference.

        If the user is not allowed to see secrets, the text contains only the reference.
        """
        return f"{self.row.key} ({self.row.reference})" if self.secrets else self.row.reference

    @property
    def badge(self) -> Any:
        return badge(self.state.name)

    @property
    def scope(self) -> str:
        return encodable(self.row.scope)

    @property
    def operation(self) -> str:
        return readable_operation(self.row.operation)


def shown(row: Any) -> Shown:
    """Return the attribute `row.shown`, which is set by the function `show`."""
    noted: Shown = row.shown
    return noted


def show(rows: Iterable[IdempotencyKey], model_admin: Any, request: HttpRequest, *, results: bool = False) -> None:
    """Set the attribute `shown` of each row. The attribute contains a `Shown` object for the current user.

    The function needs at most two queries for all rows together. One query reads the steps of the keys, and the other
    query reads the database's time.

    Args:
        results: if True, the function also reads the results and the errors of the steps.
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
        row.shown = Shown(row, facts.now, facts.steps, secrets=secrets, caller=caller, resource=resource)


def _named(type_: str, id_: str) -> str:
    return f"{type_.rpartition('.')[2].lower()} {id_}".strip()


def _linked(model_admin: Any, request: HttpRequest, type_: str, id_: str) -> Any:
    """Return a link to the admin page of an object, as HTML. The text of the link is the name of the object.

    If the admin has no page for the object, the result is None. If the user is not allowed to see the page, the result
    is None, too.

    Args:
        type_: the label of a model. The model's name alone is enough if only one model in the admin has that name.
    """
    site = model_admin.admin_site
    models = [model for model in site._registry if type_.lower() in (model._meta.label_lower, model._meta.model_name)]
    if len(models) != 1 or not site._registry[models[0]].has_view_permission(request):
        return None
    view = f"admin:{models[0]._meta.app_label}_{models[0]._meta.model_name}_change"
    page = reverse(view, args=[quote(id_)], current_app=site.name)
    return format_html('<a href="{}">{}</a>', page, shortened(_named(type_, id_), TEXT_LENGTH))
