"""A Celery application that acknowledges late, on the broker that the environment names."""

from __future__ import annotations

import json
import os

import django
from celery import Celery

django.setup()

from tests.interop.deliveries import handle  # noqa: E402

app = Celery("tests.interop.celery_worker", broker=os.environ["BROKER"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    broker_transport_options=json.loads(os.environ["BROKER_OPTIONS"]),
    worker_hijack_root_logger=False,
)
app.task(name="handle")(handle)
