"""The package `engine` is private. Code outside of `django_idempotency` must not import from `engine`. The names in
`engine` can change in every release.

The public names are in `django_idempotency` itself and in its other modules.
"""
