from __future__ import annotations

from typing import Any

from dj_rest_auth.registration.views import RegisterView
from dj_rest_auth.views import PasswordChangeView
from django.conf import settings
from django.urls import include, path
from djoser.views import UserViewSet
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.views import APIView

from django_idempotency import Idempotency
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order


class OrderView(IdempotencyMixin, APIView):
    """Where the project is not protected, its own `scope` forgets the application."""

    permission_classes = [IsAuthenticated]
    idempotency = Idempotency() if settings.PROTECTED else Idempotency(scope=lambda request: str(request.user.pk))

    def post(self, request: Any) -> Response:
        order = Order.objects.create(reference=f"{request.user.username} by {request.auth.application.name}")
        return Response({"order": order.reference}, status=201)


if settings.PROTECTED:

    class Registration(IdempotencyMixin, RegisterView):
        pass

    class PasswordChange(IdempotencyMixin, PasswordChangeView):
        pass

    class Users(IdempotencyMixin, UserViewSet):
        pass

else:
    Registration, PasswordChange, Users = RegisterView, PasswordChangeView, UserViewSet  # type: ignore[misc]

router = DefaultRouter()
router.register("users", Users)
urlpatterns = [
    path("rest-auth/registration/", Registration.as_view()),
    path("rest-auth/password/change/", PasswordChange.as_view()),
    path("accounts/", include("allauth.urls")),
    path("djoser/", include(router.urls)),
    path("orders/", OrderView.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]
