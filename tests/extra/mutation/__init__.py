"""Is each line of what decides tested? mutmut breaks one at a time, and a test should fail. See __main__.py."""
