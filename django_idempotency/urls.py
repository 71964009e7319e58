"""This module has the URL of the status page.

To include this URL in your project, write `path("idempotency/", include("django_idempotency.urls"))`.
"""

from django.urls import path

from .engine.request.responses import status

app_name = "django_idempotency"
urlpatterns = [path("status/<str:token>", status, name="status")]
