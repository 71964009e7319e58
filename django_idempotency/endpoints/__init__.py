"""This package lists the endpoints of the project, and says which endpoints are protected."""

from .listing import Endpoint, list_endpoints

__all__ = ["Endpoint", "list_endpoints"]
