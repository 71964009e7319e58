"""This module has a template tag for the admin's index page. The tag shows how many keys need attention. A template
must load this module with `{% load idempotency_admin %}`.
"""

from __future__ import annotations

import logging
from typing import Any

from django import template
from django.db import transaction
from django.urls import NoReverseMatch, reverse

from ..models import IdempotencyKey

register = template.Library()
logger = logging.getLogger("django_idempotency")


@register.inclusion_tag("admin/django_idempotency/attention.html", takes_context=True)
def idempotency_attention(context: Any) -> dict[str, Any]:
    """Show the number of keys that need attention, with a link to these keys. If a person is not allowed to view keys,
    or the admin has no pages of keys, the tag shows nothing.

    If the keys cannot be counted, the tag says so, and the log has the error. The other parts of the page do not
    change.
    """
    # The admin puts its site on each of its views. Two sites can have the same name, so a name does not find it.
    request = context.get("request")
    site: Any = getattr(getattr(getattr(request, "resolver_match", None), "func", None), "admin_site", None)
    model_admin: Any = site and site._registry.get(IdempotencyKey)
    if not (model_admin and model_admin.has_view_permission(request)):
        return {"address": None}
    # Our admin registers itself where it is imported. A project that has not registered it wants no pages of keys.
    from ..admin.decisions import NAME
    from ..admin.overview import attention, hanging, overview
    from ..maintenance.lookups import running_transactions

    try:
        address = reverse(f"admin:{NAME}_changelist", current_app=site.name)
    except NoReverseMatch:
        return {"address": None}
    try:
        keys = model_admin.get_queryset(request)
        with transaction.atomic(using=keys.db):  # an error must not break the page's transaction
            open_ = running_transactions(using=keys.db) or ()
            return {"number": attention(overview(keys)), "hanging": hanging(open_), "address": address}
    except Exception:  # the page is Django's, and must not break
        logger.exception("the admin's index page cannot count the keys that need attention")
        return {"number": None, "address": address}
