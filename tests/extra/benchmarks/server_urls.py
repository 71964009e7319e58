from __future__ import annotations

from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.extra.benchmarks.views import bare, by_hand, leased, protected

urlpatterns = [
    path("bare", csrf_exempt(bare)),
    path("protected", csrf_exempt(protected)),
    path("leased", csrf_exempt(leased)),
    path("by-hand", csrf_exempt(by_hand)),
    path("read", lambda request: HttpResponse()),
]
