"""Why a view that hands out tokens for a password must not be protected: a replay does not ask for the password."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.signing import dumps
from django.http import HttpRequest, JsonResponse
from django.test import Client, override_settings
from django.urls import path

from django_idempotency import idempotent


@idempotent
def log_in(request: HttpRequest) -> JsonResponse:
    user = authenticate(request, username=request.POST["name"], password=request.POST["password"])
    return JsonResponse({"token": dumps(user.pk)} if user else {}, status=200 if user else 400)


urlpatterns = [path("protected/", log_in), path("bare/", log_in.__wrapped__)]


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.django_db
@pytest.mark.parametrize(("url", "status"), [("/protected/", 200), ("/bare/", 400)])
def test_a_protected_login_answers_with_a_token_after_the_password_was_changed(
    url: str, status: int, client: Client, django_user_model: Any
) -> None:
    """The stored answer of the first login. So the documentation says: never protect a login."""
    user = django_user_model.objects.create_user("ann", password="stolen")

    def answer() -> Any:
        return client.post(url, {"name": "ann", "password": "stolen"}, headers={"Idempotency-Key": "one"})

    token = answer().json()["token"]
    user.set_password("new")
    user.save()

    assert (answer().status_code, answer().json().get("token")) == (status, token if status == 200 else None)
