"""Numbers that bound what an export makes; the command line shows them without loading more."""

DEFAULT_LIMIT = 8  # as torch's recompile_limit
