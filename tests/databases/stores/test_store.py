"""The contract of a store, on the database at hand: store.py, leases.py, the queries and the module of the database."""

from __future__ import annotations

from tests.contracts.stores import TestStoreContract

__all__ = ["TestStoreContract"]  # tests, which the partitioned table must pass as well
