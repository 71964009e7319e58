"""What happens when code is imported: a view gets its protection, or is refused."""
