"""The OpenAPI schema that Django Ninja makes with our API class or mixin."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("ninja")

import ninja

from django_idempotency.ninja import idempotent_operation
from django_idempotency.ninja.schema import NinjaAPI

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}}


def make() -> Any:
    """A function of its own for each route: routing leaves a mark on it."""
    return lambda request: None


def routed(api: Any, **kwargs: Any) -> Any:
    protected = api.post("/orders", operation_id="create", **kwargs)
    protected(idempotent_operation(make()))
    return api


def schema(api: Any) -> dict[str, Any]:
    """As a client gets it."""
    found: dict[str, Any] = json.loads(json.dumps(api.get_openapi_schema(path_prefix="api/"), sort_keys=True))
    return found


def operation(api: Any, path: str = "/api/orders", method: str = "post") -> dict[str, Any]:
    found: dict[str, Any] = schema(api)["paths"][path][method]
    return found


def headers(operation: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(p["name"], p.get("required", False)) for p in operation["parameters"] if p["in"] == "header"]


@pytest.fixture
def api(key: str) -> Any:
    return NinjaAPI(urls_namespace=key)


def test_c8_c14_a_protected_operation_shows_its_key(api: Any) -> None:
    """Header, replay header, and the answers with their codes."""
    found = operation(routed(api))
    (parameter,) = found["parameters"]
    assert (parameter["name"], parameter["required"]) == (HEADER, True)
    assert "Kept for: 1 day from" in parameter["description"]
    assert list(found["responses"]) == ["200", "400", "409", "422", "503"]
    assert found["responses"]["200"]["headers"][REPLAYED]["required"] is True
    bad, conflict, mismatch = (found["responses"][status] for status in ("400", "409", "422"))
    framework = {"application/json": {"schema": {}}}  # bad input, which Django Ninja does not declare
    assert bad["content"] == mismatch["content"] == {**framework, **PROBLEM}
    assert conflict["content"] == PROBLEM
    assert sorted(conflict["headers"]) == [REPLAYED, "Retry-After"]
    assert "(missing-key)" in bad["description"]
    assert "(invalid-key)" in bad["description"]
    assert "(in-progress)" in conflict["description"]
    assert mismatch["description"].startswith("Idempotency-Key is already used (already-used): ")
    assert list(schema(api)["components"]["schemas"]) == ["IdempotencyProblem"]


def test_an_observed_operation_has_no_key(api: Any, settings: Any) -> None:
    """The schema promises nothing, because each retry runs."""
    settings.IDEMPOTENCY = {"OBSERVE": True}
    assert operation(routed(api))["parameters"] == []


def test_methods_of_an_operation_are_told_apart(api: Any) -> None:
    """Django Ninja describes them together; only the unsafe one has a key."""
    api.api_operation(["GET", "POST"], "/both")(idempotent_operation(make()))
    assert headers(operation(api, "/api/both", "get")) == []
    assert REPLAYED not in str(operation(api, "/api/both", "get"))
    assert headers(operation(api, "/api/both")) == [(HEADER, True)]


def test_what_the_project_declares_stays(api: Any) -> None:
    """Its header parameter, its response, and what it adds with `openapi_extra`."""
    own = {"in": "header", "name": "idempotency-key", "schema": {"type": "string"}, "description": "mine"}
    extra = {"parameters": [own], "x-shop": 1, "responses": {422: {"description": "Sold out."}}}
    found = operation(routed(api, response={201: str, 409: int}, openapi_extra=extra))
    assert found["parameters"] == [own]
    assert found["x-shop"] == 1
    assert list(found["responses"]["409"]["content"]) == ["application/json", "application/problem+json"]
    described = found["responses"]["422"]["description"]
    assert (described.startswith("Sold out.\n"), "(already-used)" in described) == (True, True)


def test_it_serves_a_projects_own_class(key: str) -> None:
    """In front of its bases. The class may extend the schema, as Django Ninja advises."""

    class OwnAPI(ninja.NinjaAPI):
        pass

    class ShopAPI(NinjaAPI, OwnAPI):
        def get_openapi_schema(self, **kwargs: Any) -> Any:
            found = super().get_openapi_schema(**kwargs)
            found["x-shop"] = 1
            return found

    api = routed(ShopAPI(urls_namespace=key))
    assert headers(operation(api)) == [(HEADER, True)]
    assert schema(api)["x-shop"] == 1
