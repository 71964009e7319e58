"""The OpenAPI schema that drf-spectacular makes with our schema class or mixin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import include, path

pytest.importorskip("drf_spectacular")

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from drf_spectacular.validation import validate_schema
from rest_framework.decorators import action, api_view
from rest_framework.generics import CreateAPIView
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ModelViewSet

from django_idempotency import Idempotency, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from django_idempotency.rest_framework import schema as ours
from tests.frameworks.rest_framework.api_urls import OrderSerializer
from tests.shopapp.models import Order

REPLAYED = "Idempotency-Replayed"


class OrderViewSet(IdempotencyMixin, ModelViewSet):
    queryset = Order.objects.all()
    serializer_class = OrderSerializer
    idempotency = Idempotency(ttl=3600)
    idempotency_actions = {"partial_update": None}

    @action(detail=False, methods=["post"], idempotency=Idempotency(required=False, mismatch_status=409))
    def optional(self, request: Any) -> Response: ...

    @action(detail=False, methods=["post", "put"], idempotency={"methods": ["PUT"], "mismatch_status": 409})
    def two(self, request: Any) -> Response: ...

    @action(detail=False, methods=["post"], idempotency=Idempotency(lease=60, in_progress_status=202))
    def leased(self, request: Any) -> Response: ...


class Plain(CreateAPIView):
    serializer_class = OrderSerializer


@extend_schema(request=OrderSerializer, responses={(201, "text/csv"): OpenApiTypes.STR, 422: OpenApiTypes.OBJECT})
@api_view(["POST"])
@idempotent
def function(request: Any) -> Response: ...


class OwnSchema(AutoSchema):
    def get_operation_id(self) -> str:
        return "own"


@extend_schema_view(
    post=extend_schema(
        parameters=[OpenApiParameter("idempotency-key", str, OpenApiParameter.HEADER, description="mine")],
        responses={201: OrderSerializer, 409: OpenApiTypes.OBJECT},
    )
)
class Declared(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer
    schema = OwnSchema()


class MixedSchema(ours.AutoSchema, AutoSchema):
    def get_operation_id(self) -> str:
        return "mixed"


@extend_schema_view(post=extend_schema(responses={201: OrderSerializer}))
class Mixed(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer
    schema = MixedSchema()


class Dynamic(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer

    def get_idempotency_options(self) -> Any:
        raise AssertionError("asked without a request")


router = SimpleRouter()
router.register("orders", OrderViewSet)
urlpatterns = [
    path("", include(router.urls)),
    path("plain/", Plain.as_view()),
    path("function/", function),
    path("declared/", Declared.as_view()),
    path("mixed/", Mixed.as_view()),
    path("dynamic/", Dynamic.as_view()),
]


def generate(**patches: Any) -> dict[str, Any]:
    with patched_settings(patches):
        result: dict[str, Any] = SchemaGenerator(urlconf=__name__).get_schema(request=None, public=True)
    validate_schema(result)
    return result


def operation(path: str, method: str = "post", **patches: Any) -> dict[str, Any]:
    found: dict[str, Any] = generate(**patches)["paths"][path][method]
    return found


def header(operation: dict[str, Any], name: str = "Idempotency-Key") -> dict[str, Any] | None:
    found = [p for p in operation.get("parameters", []) if (p["in"], p["name"]) == ("header", name)]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_the_whole_schema_is_valid(version: str) -> None:
    """By drf-spectacular's own validation, in both versions."""
    assert generate(OAS_VERSION=version)["openapi"] == version


def test_c8_c14_an_operation_in_full(settings: Any) -> None:
    """Parameter, replay header and the problems of a protected create."""
    settings.IDEMPOTENCY = {"DOCS_URL": "https://shop.example/retries"}
    found = operation("/orders/")
    parameter: Any = header(found)
    told = dict(re.findall(r"(?m)^- ([\w ]+): (.+)$", parameter.pop("description")))
    assert parameter == {"in": "header", "name": "Idempotency-Key", "schema": {"type": "string"}, "required": True}
    assert [*told] == ["Key", "Unique for", "Compared with the first request", "Kept for", "See also"]
    assert (told["Kept for"][:7], told["See also"]) == ("1 hour ", "https://shop.example/retries")
    assert list(found["responses"]) == ["201", "400", "409", "422", "503"]
    assert found["responses"]["201"]["headers"][REPLAYED] == {
        "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "Whether this is the stored response of an earlier request. Missing if no key was honoured.",
        "required": True,
    }
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}}
    bad, conflict, mismatch = (found["responses"][status] for status in ("400", "409", "422"))
    assert bad["content"] == {"application/json": {"schema": {}}, **problem}
    assert conflict["content"] == mismatch["content"] == problem
    assert list(conflict["headers"]) == [REPLAYED, "Retry-After"]
    assert list(mismatch["headers"]) == [REPLAYED]
    assert "(in-progress): The " in conflict["description"]
    assert "(already-used): " in mismatch["description"]
    busy = found["responses"]["503"]
    assert list(busy["headers"]) == [REPLAYED, "Retry-After"]
    assert busy["description"].startswith("The idempotency store is busy (busy): Nothing was done.")


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/plain/", "post"),
        ("/orders/", "get"),
        ("/orders/{id}/", "patch"),
        ("/orders/{id}/", "put"),
        ("/orders/two/", "post"),
    ],
)
def test_what_is_not_protected_is_as_without_us(path: str, method: str) -> None:
    """Another view, a safe method, an action with None, a method that is not among the options'."""
    found = operation(path, method)
    assert header(found) is None
    assert not {"400", "409", "422", "429", "503"} & set(found["responses"])
    assert REPLAYED not in str(found)


def test_options_of_an_action() -> None:
    """Not required, and one status for two errors."""
    found = operation("/orders/optional/")
    assert "required" not in (header(found) or {})
    assert found["responses"]["200"]["headers"][REPLAYED]["required"] is False
    assert "is missing" not in found["responses"]["400"]["description"]
    assert list(found["responses"]) == ["200", "400", "409", "503"]
    assert list(found["responses"]["409"]["headers"]) == [REPLAYED, "Retry-After"]


def test_a_function_under_api_view() -> None:
    """What extend_schema says about it stays, with ours beside it."""
    found = operation("/function/")
    assert header(found) is not None
    assert list(found["responses"]["201"]["content"]) == ["text/csv"]
    assert list(found["responses"]["422"]["content"]) == ["application/json", "application/problem+json"]


def test_what_the_project_declares_stays() -> None:
    """Its schema class, its parameter of that name and its responses."""
    found = operation("/declared/")
    assert found["operationId"] == "own"
    assert header(found) is None
    assert (header(found, "idempotency-key") or {})["description"] == "mine"
    assert list(found["responses"]["409"]["content"]) == ["application/json", "application/problem+json"]
    assert "Retry-After" in found["responses"]["409"]["headers"]


def test_an_observed_operation_has_no_key(settings: Any) -> None:
    """The schema promises nothing, because each retry runs."""
    settings.IDEMPOTENCY = {"OBSERVE": True}
    assert header(operation("/mixed/")) is None


def test_settings_are_followed(settings: Any) -> None:
    """Header names, the form of the key, and the project's own errors, whose form nobody knows."""
    settings.IDEMPOTENCY = {
        "HEADER": "X-Key",
        "REPLAYED_HEADER": "X-Replayed",
        "KEY_VALIDATOR": "django_idempotency.keys.is_uuid",
        "ERROR_RESPONSE": lambda request, problem: None,
        "REQUIRED": False,
    }
    found = operation("/orders/")
    assert (header(found, "X-Key") or {})["description"].startswith("- Key: A UUID. In double quotes")
    assert "X-Replayed" in found["responses"]["201"]["headers"]
    assert "content" not in found["responses"]["422"]
    settings.IDEMPOTENCY = {"ENABLED": False}
    assert header(operation("/orders/")) is None


def test_a_projects_own_schema_class_is_used_with_the_mixin() -> None:
    """Under extend_schema too, and described once."""
    found = operation("/mixed/")
    assert found["operationId"] == "mixed"
    assert header(found) is not None
    assert found["responses"]["422"]["description"].count("(already-used)") == 1
