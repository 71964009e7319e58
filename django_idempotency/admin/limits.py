"""How far the pages look: none of their queries reads the whole table."""

LISTED = 2_000
"""How many keys the list pages through. An older key is found by the search."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at. For a rare value, it would otherwise read the whole table."""
FIRST = 5
"""How many of the keys that need attention stand above the list: the oldest."""
EXAMPLES = 200
"""Among how many of the latest results of a step an example is looked for."""
