"""Run the command line as ``python -m liesparse``."""

from liesparse.cli import main

if __name__ == "__main__":  # not where a worker process imports it again
    main()
