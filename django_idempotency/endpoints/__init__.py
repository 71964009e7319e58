"""The project's endpoints and whether they are protected, for people, for programs and for OpenAPI."""

from .listing import Endpoint, list_endpoints

__all__ = ["Endpoint", "list_endpoints"]
