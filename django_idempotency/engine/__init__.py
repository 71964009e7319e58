"""Private. Nothing outside this package may import from here: modules and names change without notice.

The public names are in `django_idempotency` and in the folders beside this one.
"""
