"""A list of the project's endpoints that says which of them are protected."""

from .listing import Endpoint, list_endpoints

__all__ = ["Endpoint", "list_endpoints"]
