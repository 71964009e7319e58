"""How is a request to a protected view handled? Read `pipeline.handle` first."""
