"""This module has a template tag for the admin's index page. The tag shows how many keys need attention. A template
must load this module with `{% load idempotency_admin %}`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django import template
from django.db import Error, transaction
from django.urls import reverse

from ..models import IdempotencyKey

register = template.Library()


@register.inclusion_tag("admin/django_idempotency/attention.html", takes_context=True)
def idempotency_attention(context: Any) -> dict[str, Any]:
    """Show the number of keys that need attention, with a link to these keys. If a person is not allowed to view keys,
    the tag shows nothing.

    If the database does not answer, the tag shows that the keys cannot be counted. The other parts of the page do not
    change.
    """
    # Django imports every module with template tags, even if a project does not use the admin. So only this function
    # imports code of the admin.
    from django.contrib.admin.sites import all_sites

    from ..admin.decisions import NAME
    from ..admin.overview import attention, overview

    request = context["request"]
    for site in all_sites:
        model_admin: Any = site._registry.get(IdempotencyKey)
        if site.name == request.current_app and model_admin and model_admin.has_view_permission(request):
            keys, number = model_admin.get_queryset(request), None
            with suppress(Error), transaction.atomic(using=keys.db):  # an error must not break the page's transaction
                number = attention(overview(keys))
            return {"number": number, "address": reverse(f"admin:{NAME}_changelist", current_app=site.name)}
    return {}
