"""The work of keys_outside.py: a view that publishes to a list of the Redis at BROKER. It needs no package for keys."""

from __future__ import annotations

import os

import redis
from django.http import HttpRequest, HttpResponse
from django.urls import path

broker = redis.Redis.from_url(os.environ["BROKER"])


def publish(request: HttpRequest) -> HttpResponse:
    broker.rpush("events", request.body)
    return HttpResponse(b'{"published": true}', status=201, content_type="application/json")


urlpatterns = [path("read", lambda request: HttpResponse()), path("bare", publish)]
