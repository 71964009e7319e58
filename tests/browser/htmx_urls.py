"""The forms of docs/views.md, as they are printed, in a page with real htmx."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

from django_idempotency import idempotent
from tests.acceptance.pages import blocks, templates
from tests.shopapp import models

PAGE = "docs/views.md"
TEMPLATES = templates(PAGE)
FIELDS = '<div id="fields">{% if placed %}<p class="placed"></p>{% endif %}{{ form }}</div>'
TEMPLATES["fields.html"] = FIELDS
STRICT = '{"includeIndicatorStyles": false, "includeIndicatorCSS": false, '  # these tests forbid inline styles
TEMPLATES["shop/base.html"] = TEMPLATES["shop/base.html"].replace("{", STRICT, 1)
# A page that swaps the fields alone, so that the key stays. Its last button brings a key for a button without a form.
ROUND_THE_KEY = '<form hx-post="/fields/" hx-target="#fields" hx-swap="outerHTML">{% csrf_token %}{% idempotency_key %}'
FRAME = """<!doctype html><html lang="en"><title>Order</title>{% include "shop/base.html" %}
<script src="/htmx.js?{{ request.GET.htmx }}"></script>"""


def documented(name: str) -> ModuleType:
    module = ModuleType(name.partition("/")[2].removesuffix(".py"))
    exec(compile(blocks(PAGE)[name], f"{PAGE}:{name}", "exec"), vars(module))
    return module


with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "shop", ModuleType("shop"))
    patch.setitem(sys.modules, "shop.models", models)
    patch.setitem(sys.modules, "shop.forms", documented("shop/forms.py"))
    QuickOrderView: Any = documented("shop/htmx.py").QuickOrderView


class Fields(QuickOrderView):
    template_name = "fields.html"


@idempotent
def reorder(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f'<p class="placed">{models.Order.objects.create().pk}</p>', status=201)


def htmx(request: HttpRequest) -> HttpResponse:
    import django_htmx

    name = f"static/django_htmx/htmx-{request.META['QUERY_STRING']}.min.js"
    return HttpResponse((Path(django_htmx.__file__).parent / name).read_bytes(), content_type="text/javascript")


def page(template: str) -> Any:
    def show(request: HttpRequest) -> HttpResponse:
        form = QuickOrderView(request=request).get_form_class()()
        rendered = engines["django"].from_string("{% load idempotency %}" + FRAME + template)
        return HttpResponse(rendered.render({"form": form}, request))

    return show


urlpatterns = [
    path("htmx.js", htmx),
    path("quick-order/", QuickOrderView.as_view()),
    path("fields/", Fields.as_view()),
    path("reorder/", reorder),
    path("whole", page('{% include "shop/quick_order.html" %}')),
    path("part", page(ROUND_THE_KEY + FIELDS + "<button>Order</button></form>")),
    path("button", page('{% include "shop/reorder.html" %}')),
]
