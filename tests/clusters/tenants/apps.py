from __future__ import annotations

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tests.clusters.tenants"
    label = "tenants"
