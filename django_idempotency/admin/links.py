"""What a key is about and who has sent it, each with a link to its own page, where this user may see that page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import quote
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from ..engine.conf.fields import address_of_a_page
from ..engine.protocol.snapshots import decode_headers
from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey
from .permissions import may_see_responses
from .texts import shortened

ACCOUNT = re.compile(r"user:(?P<model>\w+\.\w+):(?P<pk>.+)")
"""The scope of a user of the default database: see `scope_of_user`."""
TEXT_LENGTH = 24
"""Characters of a caller or of an address in the list."""


def attach_links(rows: Iterable[IdempotencyKey], model_admin: Any, request: HttpRequest) -> None:
    """Note on each row its caller and its resource as HTML. One query for each model of callers, one for headers."""
    site = model_admin.admin_site
    callers = _callers(rows, site, request)
    locations = _locations(rows) if may_see_responses(request) else {}
    for row in rows:
        row.caller_link = callers.get(row.scope, shortened(row.scope, TEXT_LENGTH))  # type: ignore[attr-defined]
        row.resource_link = (  # type: ignore[attr-defined]
            _resource(row, site, request) if row.resource_id else locations.get(row.pk, "-")
        )


def _callers(rows: Iterable[IdempotencyKey], site: Any, request: HttpRequest) -> dict[str, Any]:
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


def _locations(rows: Iterable[IdempotencyKey]) -> dict[int, Any]:
    """The `Location` of each completed key that names no resource."""
    keys = {row.pk: row for row in rows if row.status == IdempotencyKey.Status.COMPLETED and not row.resource_id}
    if not keys:
        return {}
    using = next(iter(keys.values()))._state.db
    stored = IdempotencyKey.objects.using(using).filter(pk__in=keys).values_list("pk", "headers")
    links = {}
    for pk, headers in stored:
        try:
            plain = unseal(keys[pk], "headers", headers)
        except NotDecryptable:
            continue
        address = next((value for name, value in decode_headers(plain) if name.lower() == "location"), None)
        if address:
            links[pk] = _address(address)
    return links


def _address(address: str) -> Any:
    """A link only to a page: the view may have taken the address from a client."""
    text = shortened(address, TEXT_LENGTH)
    if address_of_a_page(address) is not None:
        return text
    return format_html('<a href="{}" rel="noopener noreferrer">{}</a>', address, text)
