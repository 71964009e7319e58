from django.contrib import admin
from django.urls import path

from tests.integration import leased_urls

urlpatterns = [path("admin/", admin.site.urls), *leased_urls.urlpatterns]
