"""GraphQL: protect a whole request, or each mutation. Install `django-idempotency[graphql]`."""

from .fields import CountsEntries, mutate_once
from .requests import protect_mutations

__all__ = ["CountsEntries", "mutate_once", "protect_mutations"]
