"""A shop whose orders are tasks of Celery, as Celery's page about Django says; the broker is a folder."""

from __future__ import annotations

from celery import Celery

app = Celery("celery_shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
