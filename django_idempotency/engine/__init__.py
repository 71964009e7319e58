"""The package `engine` is private. Code outside of `django_idempotency` must not import from `engine`, because its
names change without notice.

The public names are in `django_idempotency` itself and in its other modules.
"""
