"""The shop's Celery, as Celery's page about Django says."""

from __future__ import annotations

from celery import Celery

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
