from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):
    """Saving one makes its schema and runs the migrations there."""


class Domain(DomainMixin):
    pass
