"""The project's endpoints, and which of them are protected."""

from .listing import Endpoint, list_endpoints

__all__ = ["Endpoint", "list_endpoints"]
