"""The compiled hot path: one library for each instruction set, built with the package, and how it is called."""
