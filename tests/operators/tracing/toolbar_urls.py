from __future__ import annotations

from django.urls import include, path

from tests import view_urls

urlpatterns = [path("__debug__/", include("debug_toolbar.urls")), *view_urls.urlpatterns]
