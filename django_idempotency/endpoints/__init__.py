"""This package lists the endpoints of the project. The list shows which endpoints are protected."""

from .listing import Endpoint, list_endpoints

__all__ = ["Endpoint", "list_endpoints"]
