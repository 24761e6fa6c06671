"""Run the command line as ``python -m liesparse``."""

from liesparse.cli import main

main()
