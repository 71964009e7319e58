from __future__ import annotations

from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.benchmarks.views import bare, protected

urlpatterns = [
    path("bare", csrf_exempt(bare)),
    path("protected", csrf_exempt(protected)),
    path("read", lambda request: HttpResponse()),
]
