"""How work runs once: in one transaction (atomic), or under a lease."""
