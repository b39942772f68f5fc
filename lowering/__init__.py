"""Traced program → binaries, one per target. The way in is `lower.lower`."""
