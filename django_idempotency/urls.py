"""The status page. Include it as `path("idempotency/", include("django_idempotency.urls"))`."""

from django.urls import path

from .engine.request.responses import status

app_name = "django_idempotency"
urlpatterns = [path("status/<str:token>", status, name="status")]
