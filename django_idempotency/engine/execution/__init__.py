"""This package runs a piece of work only once. In atomic mode, the work runs in one transaction. In leased mode, the
worker has a lease on the key.
"""
