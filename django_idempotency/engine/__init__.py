"""This package is private. No code outside of `django_idempotency` may import from here, because names change without
notice.

The public names are in `django_idempotency` and in the folders beside `engine`.
"""
