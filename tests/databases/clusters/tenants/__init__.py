"""A project with a PostgreSQL schema for each tenant, by django-tenants."""
