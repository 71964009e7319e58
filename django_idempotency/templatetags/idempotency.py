"""This module has a template tag for HTML forms. The tag renders a hidden field with a key.

In a template, load the tag with `{% load idempotency %}`.
"""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..engine.protocol.key_syntax import new_key
from ..keys import FORM_FIELD

register = template.Library()


@register.simple_tag
def idempotency_key(name: str = FORM_FIELD) -> SafeString:
    """Render a hidden field with a new key. The function `from_form_field(name)` reads the field.

    Do not cache the page, because all readers of a cached page would get the same key.
    """
    return format_html('<input type="hidden" name="{}" value="{}">', name, new_key())
