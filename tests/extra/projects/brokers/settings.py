"""A shop whose module is a recipe of docs/events.md, written to a folder by the test: `shop.<RECIPE>`."""

from __future__ import annotations

import os

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS, _TablesOfModels

RECIPE, REDIS = os.environ["RECIPE"], os.environ["REDIS"]
APPS = {
    "huey_tasks": ["huey.contrib.djhuey"],
    "procrastinate_tasks": ["procrastinate.contrib.django"],
    "tasks": ["django_tasks_db"],
}
INSTALLED_APPS = [*INSTALLED_APPS, *APPS.get(RECIPE, []), "tests.extra.projects.brokers"]
ROOT_URLCONF = "tests.urls"

CELERY_BROKER_URL = REDIS
# A delivery that works for longer than 2 seconds comes again, when Celery looks for it each second. Where nothing is
# set, it comes again after an hour, and Celery looks every 100 seconds.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
HUEY = {"name": "shop", "connection": {"url": REDIS}, "immediate": False}
PROCRASTINATE_WORKER_DEFAULTS = {"update_heartbeat_interval": 1, "stalled_worker_timeout": 2}
if RECIPE == "tasks":
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}


class _TablesOfModelsAndProcrastinates(_TablesOfModels):
    """Its migrations make functions, which no model has."""

    def __contains__(self, app: str) -> bool:
        return app != "procrastinate" and super().__contains__(app)


MIGRATION_MODULES = _TablesOfModelsAndProcrastinates()
