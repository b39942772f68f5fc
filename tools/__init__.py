"""The `tcexport` command: one module for each subcommand. Nothing heavy is imported before it is
needed: ``--help`` imports neither torch nor rich."""
