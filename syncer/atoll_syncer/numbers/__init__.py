"""Room numbers."""
