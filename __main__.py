"""``python -m tcexport`` is the command ``tcexport``."""

from .tools.cli import main

main()
