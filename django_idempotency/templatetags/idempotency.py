"""Template tags for pages that send a key: `{% load idempotency %}`."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..engine.protocol.key_syntax import new_key
from ..keys import FORM_FIELD

register = template.Library()


@register.simple_tag
def idempotency_key(name: str = FORM_FIELD) -> SafeString:
    """Render a hidden field with a new key, which `from_form_field(name)` reads.

    Do not cache the page: otherwise, all its visitors would get the same key.
    """
    return format_html('<input type="hidden" name="{}" value="{}">', name, new_key())


@register.simple_tag
def new_idempotency_key() -> str:
    """Return a new key as plain text, for htmx's `hx-headers` or a script that calls `fetch`.

    Each element needs a separate key, and the page must not be cached.
    """
    return new_key()
