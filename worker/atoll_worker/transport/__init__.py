"""Room transport."""
