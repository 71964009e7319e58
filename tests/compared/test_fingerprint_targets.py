"""What a key is for: the target of a request, and what the option `operation` makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import ResolverMatch, clear_url_caches, path, re_path, register_converter
from django.urls.converters import get_converters

from django_idempotency import idempotent
from tests.http import replayed
from tests.payloads import of

pytestmark = pytest.mark.django_db

COMPARED: list[Any] = ["request", ("amount",), lambda request: b"same", None]


class AsObject:
    """A converter whose values have another text in each process."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> Any:
        return object()

    def to_url(self, value: Any) -> str:
        raise AssertionError("no test reverses it")


@pytest.fixture
def routed(client: Client) -> Iterator[Callable[..., Any]]:
    """Posts under one key to routes of one view."""
    if "as_object" not in get_converters():
        register_converter(AsObject, "as_object")

    def protect(routes: list[str], **options: Any) -> Callable[..., Any]:
        def says_its_path(request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
            return HttpResponse(request.path)

        protected = idempotent(**options)(says_its_path)
        urls.urlpatterns = [  # type: ignore[attr-defined]
            (re_path if "(" in route else path)(route, protected) for route in routes
        ]
        clear_url_caches()  # Django has read the routes of an earlier call
        return lambda address, method="post": getattr(client, method)(
            address, {"amount": 1}, content_type="application/json", headers={"Idempotency-Key": "k"}
        )

    urls = ModuleType("urls_of_this_test")
    with override_settings(ROOT_URLCONF=urls):
        yield protect


@pytest.mark.parametrize("fingerprint", COMPARED, ids=["request", "fields", "callable", "none"])
@pytest.mark.parametrize(
    "route", ["orders/<int:pk>/pay", "orders/<uuid:pk>/pay", r"^orders/([0-9a-f-]+)/pay$", "orders/<as_object:pk>/pay"]
)
@pytest.mark.parametrize("operation", [{}, {"operation": "pay"}], ids=["by route", "named"])
def test_a_key_of_one_object_is_refused_for_another(
    routed: Callable[..., Any], route: str, operation: dict[str, str], fingerprint: Any
) -> None:
    """Whatever is compared: else object 2 would be answered with the response of object 1."""
    send = routed([route], fingerprint=fingerprint, **operation)
    one, two = ("1", "2") if "uuid" not in route else (str(UUID(int=1)), str(UUID(int=2)))
    sent = [send(f"/orders/{number}/pay") for number in (one, two, one)]
    assert [(answer.status_code, replayed(answer)) for answer in sent] == [
        *((200, "false"), (422, "false"), (200, "true")),
    ]


@pytest.mark.parametrize("fingerprint", COMPARED, ids=["request", "fields", "callable", "none"])
def test_a_renamed_route_keeps_the_keys_of_a_named_operation(routed: Callable[..., Any], fingerprint: Any) -> None:
    """The URL's arguments are the target, and the method."""
    send = routed(["orders/<int:pk>/pay", "payments/<int:pk>"], operation="pay", fingerprint=fingerprint)
    sent = [send("/orders/1/pay"), send("/payments/1"), send("/payments/2"), send("/payments/1", "patch")]
    assert [answer.status_code for answer in sent] == [200, 200, 422, 422]
    assert [replayed(answer) for answer in sent] == ["false", "true", "false", "false"]


@pytest.mark.parametrize("fingerprint", COMPARED[:3], ids=["request", "fields", "callable"])
def test_the_name_that_an_operation_has_can_be_written_down(routed: Callable[..., Any], fingerprint: Any) -> None:
    """The runbook says so, for keys that wait for `reconcile`: their retries go on."""
    sent = [
        routed(["orders/<int:pk>/pay"], fingerprint=fingerprint, **named)("/orders/1/pay")
        for named in ({}, {"operation": "POST orders/<int:pk>/pay"})
    ]
    assert [replayed(answer) for answer in sent] == ["false", "true"]


@pytest.mark.parametrize("fingerprint", COMPARED, ids=["request", "fields", "callable", "none"])
def test_two_paths_of_one_route_without_arguments_are_two_targets(routed: Callable[..., Any], fingerprint: Any) -> None:
    send = routed(["^pay/(?:card|cash)$"], fingerprint=fingerprint)
    sent = [send("/pay/card"), send("/pay/cash"), send("/pay/card")]
    assert [(answer.status_code, replayed(answer)) for answer in sent] == [
        *((200, "false"), (422, "false"), (200, "true")),
    ]


def test_under_a_name_they_stay_the_same_from_release_to_release() -> None:
    """Without a match of the URL, the path is the target."""
    request = RequestFactory().post("/orders/7/pay?a=1", b"{}", content_type="application/json")
    request.resolver_match = ResolverMatch(len, (), {"pk": 7, "at": date(2026, 1, 2)})
    found = [of(request, operation="pay", fingerprint=chosen).hex() for chosen in ("request", COMPARED[2], None)]
    request.resolver_match = None
    found.append(of(request, operation="pay", fingerprint=None).hex())
    assert found == [
        "eb765821acacc06a5005f16ebf1e763a0eb54bf4e13bb33d63711ab9bda6c0f2",
        "e401c6181e47e8d49963fb7afea06f9f104cbc885176a3579871c3797804ed1b",
        "133111a478765abcaa295a50e1ecec1ac025b2cf9d6f177346458cf23d300609",
        "72700407fd90cbe149e990a31944c9db7c46de58d9bbe2dd0cdca23128dae210",
    ]
