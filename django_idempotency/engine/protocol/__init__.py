"""The rules of idempotency keys as pure functions and values, without Django, a database or a clock."""
