"""The decorators and the mixin that protect views.

A view is protected while its module is imported. If it cannot be protected, `IdempotencyConfigurationError` is raised.
"""
