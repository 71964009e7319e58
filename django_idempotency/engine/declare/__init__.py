"""This package has the decorators and the mixin that protect views. The package protects a view at the moment when
Python imports the view's module. If the package cannot protect a view, it raises `IdempotencyConfigurationError`.
"""
