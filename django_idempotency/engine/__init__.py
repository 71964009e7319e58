"""Private: nothing outside `django_idempotency` may import from here, and any release may change any name.

The public names live in `django_idempotency` itself and in its other modules.
"""
