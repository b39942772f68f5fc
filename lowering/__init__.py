"""Traced program → binaries, one per target."""
