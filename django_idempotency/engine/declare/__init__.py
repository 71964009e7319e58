"""This package has the decorators and the mixin that protect views. A view is protected when Python imports the module
of the view. If the package cannot protect a view, it raises `IdempotencyConfigurationError`.
"""
