"""This package runs work once, either in one transaction (atomic mode) or under a lease (leased mode)."""
