"""How work runs only once: in one transaction, under a lease, or with its key in a backend."""
