"""A process that :mod:`liesparse.reproduce.scale.streaming` starts and measures."""

from liesparse.reproduce.scale.streaming import main

main()
