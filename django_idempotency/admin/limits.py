"""How far the pages look: none of their queries reads the whole table."""

LISTED = 2_000
"""How many keys the list pages through. Whoever looks further back knows the key and searches for it."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at: a rare value would otherwise be sought in the whole table."""
SAMPLED = 512
"""How many keys the chart looks at before it doubles its steps: some 7,000 in a table of 5 million."""
