"""This package handles a request to a protected view. Read the function `pipeline.handle` first."""
