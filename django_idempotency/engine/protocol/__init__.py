"""This package contains the rules for idempotency keys as pure functions and values.

The rules do not use Django, a database or a clock.
"""
