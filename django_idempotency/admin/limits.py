"""How far the pages look: none of their queries reads the whole table."""

LISTED = 2_000
"""How many keys the list pages through. Whoever looks further back knows the key and searches for it."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at: a rare value would otherwise be sought in the whole table."""
SAMPLED = 256
"""How many keys the chart looks at for each doubling of the distance, beyond the latest 8 x 256, which it counts: 5,000
in a table of 5 million. At its far end one look stands for a tenth of an average hour, on this side of it for less."""
