from __future__ import annotations

import os

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS

FOLDER = os.environ["CELERY_FOLDER"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.extra.projects.celery_shop"]
ROOT_URLCONF = "tests.extra.projects.celery_shop.urls"
CELERY_BROKER_URL = "filesystem://"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "data_folder_in": f"{FOLDER}/queue",
    "data_folder_out": f"{FOLDER}/queue",
    "control_folder": f"{FOLDER}/control",
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True
GATEWAYS = {"gateway with keys": os.environ["GATEWAY"], "gateway without keys": os.environ["OLD_GATEWAY"]}
