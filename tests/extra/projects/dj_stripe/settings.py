from __future__ import annotations

import os

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "djstripe"]
ROOT_URLCONF = "tests.extra.projects.dj_stripe.urls"
STRIPE_TEST_SECRET_KEY = "sk_test_000000000000000000000000"
STRIPE_LIVE_MODE = False
STRIPE_API_HOST = os.environ["STRIPE_API_HOST"]
DJSTRIPE_FOREIGN_KEY_TO_FIELD = "id"
