"""Room edges."""
