from __future__ import annotations

import json
from functools import partial

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from tests.extra.projects.celery_shop.tasks import place


def order(request: HttpRequest) -> HttpResponse:
    transaction.on_commit(partial(place.delay, **json.loads(request.body)))
    return HttpResponse(status=202)


urlpatterns = [path("orders/", csrf_exempt(require_POST(idempotent(order) if settings.PROTECTED else order)))]
