from __future__ import annotations

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.postgres",  # for the search of newer Wagtails
    "wagtail.contrib.forms",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.users",
    "wagtail.admin",
    "wagtail.search",
    "wagtail",
    "modelcluster",
    "taggit",
    "tests.extra.projects.wagtail_site",
]
ROOT_URLCONF = "tests.extra.projects.wagtail_site.urls"
WAGTAIL_SITE_NAME = "Courses"
