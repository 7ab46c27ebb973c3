"""Room storage."""
