"""W005: protected views whose schema class leaves the idempotency key out of OpenAPI."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("drf_spectacular")

from django.core.checks import Warning
from django.http import HttpRequest
from django.test import modify_settings
from django.urls import path
from drf_spectacular.openapi import AutoSchema as PlainSchema
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import idempotent
from django_idempotency.checks import check_openapi
from django_idempotency.rest_framework import IdempotencyMixin
from django_idempotency.rest_framework.schema import AutoSchema

PLAIN = "drf_spectacular.openapi.AutoSchema"
HINT = (
    "Set REST_FRAMEWORK['DEFAULT_SCHEMA_CLASS'] = 'django_idempotency.rest_framework.schema.AutoSchema', "
    "or put IdempotencySchemaMixin of that module in front of the bases of your own schema class."
)


class Protected(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response: ...


class Unprotected(APIView):
    post = Protected.post


class Plain(Protected):
    schema = PlainSchema()


class Combined(Plain):
    @extend_schema(responses={201: None})
    def post(self, request: Any) -> Response: ...


@pytest.fixture
def warned(settings: Any) -> Any:
    """The messages of the check for these views."""

    def run(*views: Any) -> list[Any]:
        settings.ROOT_URLCONF = ModuleType("checked_urls")
        settings.ROOT_URLCONF.urlpatterns = [path(str(number), view) for number, view in enumerate(views)]
        return check_openapi(None)

    return run


def test_w005_names_the_schema_class_and_the_views(warned: Any, settings: Any) -> None:
    """One warning for each schema class, in full."""
    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": PLAIN}

    @api_view(["POST"])
    @idempotent
    def function(request: HttpRequest) -> Response: ...

    views = (cls.as_view() for cls in (Protected, Unprotected))
    assert warned(*views, function) == [
        Warning(
            f"the schema class {PLAIN} leaves the idempotency key out of OpenAPI, "
            f"of {__name__}.Protected, {__name__}.function.",
            hint=HINT,
            id="django_idempotency.W005",
        )
    ]


@pytest.mark.parametrize(
    ("view", "count"),
    [
        (Protected.as_view(), 0),
        (Plain.as_view(), 1),
        (Protected.as_view(schema=PlainSchema()), 1),
        (Plain.as_view(schema=AutoSchema()), 0),
        (Plain.as_view(schema=None), 0),
        (type("Contradiction", (Plain,), {"idempotency": {"on_abandoned": "hold"}}).as_view(), 0),
        (Combined.as_view(), 0),
        (idempotent(lambda request: None), 0),
    ],
)
def test_w005_is_about_the_schema_class_in_use(warned: Any, view: Any, count: int) -> None:
    """A view's own class or the one of extend_schema; a view without a schema is excluded by the project."""
    assert len(warned(view)) == count


def test_w005_needs_drf_spectacular_among_the_apps_and_a_setting_that_can_be_read(warned: Any, settings: Any) -> None:
    """A project may have installed the package for other reasons. E001 reports the setting."""
    assert len(warned(Plain.as_view())) == 1
    with modify_settings(INSTALLED_APPS={"remove": "drf_spectacular"}):
        assert warned(Plain.as_view()) == []
    settings.IDEMPOTENCY = {"TLT": 1}
    assert warned(Plain.as_view()) == []
