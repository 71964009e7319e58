from __future__ import annotations

import os

from tests.acceptance.pages import blocks
from tests.settings import *  # noqa: F403
from tests.settings import DATABASES as _DATABASES

_documented: dict[str, object] = {}
exec(blocks("docs/databases.md")["shop/scopes.py"], _documented)  # the recipe
DATABASES = {
    "default": {
        **_DATABASES["default"],
        "ENGINE": "django_tenants.postgresql_backend",
        "NAME": os.environ["SERVER_DATABASE"],
    }
}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "tenants.Tenant", "tenants.Domain"
SHOW_PUBLIC_IF_NO_TENANT_FOUND = True
TENANT_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_idempotency", "tests.shopapp"]
SHARED_APPS = ["django_tenants", "tests.databases.clusters.tenants", "django_idempotency"]
INSTALLED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
MIDDLEWARE = ["django_tenants.middleware.main.TenantMainMiddleware"]
ROOT_URLCONF = "tests.databases.clusters.tenants.urls"
IDEMPOTENCY = {"SCOPE": _documented["tenant_and_caller"]}
TENANT_LIMIT_SET_CALLS = "TENANT_LIMIT_SET_CALLS" in os.environ
TEMPLATES: list[object] = []
