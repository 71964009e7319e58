from importlib.util import find_spec

from django.urls import include, path

from tests import admin_urls

theme = [path("grappelli/", include("grappelli.urls"))] if find_spec("grappelli") else []
urlpatterns = [*theme, *admin_urls.urlpatterns]
