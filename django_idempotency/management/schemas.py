"""Which PostgreSQL schemas does a command work on, and how does its connection get there?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections
from django.db.models import QuerySet

from ..engine.stores import alias_for, store_for


def all_schemas(alias: str | None) -> list[str]:
    """Return the schemas that have a key table; with django-tenants, only the tenants' schemas and the shared one.

    If the database isn't PostgreSQL, the list is empty.
    """
    connection = connections[alias_for(alias)]
    schemas = store_for(connection.alias).schemas()
    if hasattr(connection, "set_tenant"):
        # A copy of a schema, such as a backup, may have a key table, too. No command may change the keys in it.
        shared = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
        known = {shared, *_tenants(connection).values_list("schema_name", flat=True)}
        schemas = [schema for schema in schemas if schema in known]
    return schemas


@contextmanager
def in_schema(alias: str | None, schema: str | None) -> Iterator[None]:
    """Make the connection find this schema's tables first, and restore its search path afterwards.

    If `schema` is None, the search path stays as it is. Raises `CommandError` if the schema has no key table, because
    the shared schema's table would be used instead.
    """
    if schema is None:
        yield
        return
    if schema not in (known := all_schemas(alias)):
        raise CommandError(f"schema {schema!r} has no key table. Known are: {', '.join(known) or 'none'}.")
    connection: Any = connections[alias_for(alias)]
    enter = _as_tenant if hasattr(connection, "set_tenant") else _with_search_path
    with enter(connection, schema):
        yield


@contextmanager
def _as_tenant(connection: Any, schema: str) -> Iterator[None]:
    """Let django-tenants set the path. It also sets `connection.tenant`, which `reconcile` may use to read settings."""
    before, tenant = connection.tenant, _tenants(connection).filter(schema_name=schema).first()
    try:
        connection.set_schema(schema) if tenant is None else connection.set_tenant(tenant)
        yield
    finally:
        connection.set_tenant(before)


def _tenants(connection: Any) -> QuerySet[Any]:
    """The rows of django-tenants' own model."""
    model: Any = apps.get_model(getattr(settings, "TENANT_MODEL"))  # noqa: B009 (mypy doesn't know the setting)
    tenants: QuerySet[Any] = model._default_manager.using(connection.alias)
    return tenants


@contextmanager
def _with_search_path(connection: Any, schema: str) -> Iterator[None]:
    """Set the search path as a connection parameter, so that a connection that replaces a broken one has it, too."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW search_path")
        (path,) = cursor.fetchone()
    options = connection.settings_dict["OPTIONS"]
    path = f"{connection.ops.quote_name(schema)}, {path}".replace("\\", "\\\\").replace(" ", "\\ ")
    more = {"options": f"{options.get('options', '')} -c search_path={path}".strip()}
    try:
        _reconnect(connection, {**options, **more})
        yield
    finally:
        _reconnect(connection, options)


def _reconnect(connection: Any, options: dict[str, Any]) -> None:
    connection.close()
    connection.close_pool()
    connection.settings_dict["OPTIONS"] = options
