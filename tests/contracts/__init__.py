"""Tests that run more than once: on the plain key table, and on a partitioned one."""
