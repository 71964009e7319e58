"""Routes beside a project's own endpoints: an admin with a view of the project, and format suffixes."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.urls import path, re_path
from django.views.decorators.http import require_POST

from tests.operators.endpoints.shop import view

create, refund = require_POST(view), require_POST(view)


class Back(AdminSite):
    def get_urls(self) -> list[Any]:
        return [path("refund/", self.admin_view(refund)), *super().get_urls()]


urlpatterns = [
    path("back/", Back(name="back").urls),
    re_path(r"^orders\.(?P<format>[a-z0-9]+)/?$", create),
    re_path(r"^orders/$", create),
    re_path(r"^only\.(?P<format>[a-z0-9]+)/?$", view),
]
