"""Other people's projects on Django, as real processes: with this package, and without it to see the harm."""
