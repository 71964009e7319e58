"""Class-based views with access mixins: protected below them, which is right, and above them."""

from __future__ import annotations

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import idempotent
from tests.views import view_class


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


def never_runs(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the view ran")


Private = view_class(LoginRequiredMixin, View, post=never_runs)


@method_decorator(idempotent, name="dispatch")
class Above(Private):
    pass


class Inherited(LoginRequiredMixin, method_decorator(idempotent, name="dispatch")(type("Base", (View,), {}))):
    """The access mixin stands above the protected dispatch: right."""


urlpatterns = [path("above", Above.as_view()), path("inherited", Inherited.as_view()), path("view", idempotent(view))]
