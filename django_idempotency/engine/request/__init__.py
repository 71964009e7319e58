"""What happens when a request is served. The module `pipeline` has the steps of a request in their order."""
