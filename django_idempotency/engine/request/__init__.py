"""What happens when a request is served. `pipeline` reads as the contract does, from top to bottom."""
