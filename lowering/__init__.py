"""Traced program → binaries, one per target: `lower.lower`."""
