"""Room link."""
