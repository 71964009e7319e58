"""The decorators and the mixin that protect views. They do so while the view's module is imported, or raise
`IdempotencyConfigurationError` if they cannot.
"""
