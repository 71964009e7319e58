from django.urls import path

from django_idempotency import idempotent
from tests.integration.leased_urls import LEASE, hooked

urlpatterns = [path("poll", idempotent(lease=LEASE, in_progress_status=202)(hooked))]
