"""A template tag for the admin's index page, which shows how many keys need attention."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django import template
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse

from ..engine.conf import get_settings
from ..engine.stores import alias_for
from ..engine.stores.transactions import atomically
from ..limits import is_limit
from ..models import IdempotencyKey

register = template.Library()
logger = logging.getLogger("django_idempotency")


@register.inclusion_tag("admin/django_idempotency/attention.html", takes_context=True)
def idempotency_attention(context: Any) -> dict[str, Any]:
    """Show how many keys need attention, with a link to them. Only people who may view keys see this, and only on an
    admin site that has pages for keys.

    If the keys cannot be counted, the tag says so and the error is logged, but the rest of the page is not affected.
    """
    # The site is taken from the view itself, because two sites can have the same name.
    request = context.get("request")
    site: Any = getattr(getattr(getattr(request, "resolver_match", None), "func", None), "admin_site", None)
    model_admin: Any = site and site._registry.get(IdempotencyKey)
    if not (model_admin and model_admin.has_view_permission(request)):
        return {"address": None}
    # This import also registers our admin's pages, so it must wait until the site is known to have key pages.
    from ..admin.decisions import NAME
    from ..admin.headline import headline

    try:
        address = reverse(f"admin:{NAME}_changelist", current_app=site.name)
    except NoReverseMatch:
        return {"address": None}
    page = {"address": address, "styles": _styles(), "paused": _paused(), "headline": None}
    try:
        keys = model_admin.get_queryset(request)
        # An error must not break the page's transaction.
        return page | {"headline": atomically(keys.db, partial(headline, model_admin, request, keys))}
    except Exception as error:  # Django's own page must not break
        if is_limit(error):
            raise
        logger.exception("The admin's index page could not count the keys that need attention.")
        return page


def _paused() -> bool:
    """Return whether `PAUSED` is on.

    If its callable fails, the error is logged and False is returned. Requests that fail with that error report it, too.
    """
    conf = get_settings()
    if not callable(conf.paused):
        return conf.paused
    try:
        return atomically(alias_for(None), conf.pauses)  # an error must not break the page's transaction
    except Exception as error:
        if is_limit(error):
            raise
        logger.exception("IDEMPOTENCY['PAUSED'] failed: it is unknown whether requests are paused.")
        return False


def _styles() -> str:
    """The address of our style sheet, or "" if it has not been collected. Django's page works without it."""
    try:
        return static("django_idempotency/admin.css")
    except ValueError:
        return ""
