"""Room rules."""
