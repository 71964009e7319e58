"""This package handles a request to a protected view. The function `pipeline.handle` shows the order of the work."""
