from django.contrib import admin
from django.urls import path

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.models import IdempotencyKey
from tests import leased_urls

second_site = admin.AdminSite(name="second")
second_site.register(IdempotencyKey, IdempotencyKeyAdmin)
urlpatterns = [path("admin/", admin.site.urls), path("second/", second_site.urls), *leased_urls.urlpatterns]
