"""One module for each table, figure and claim: it returns numbers, then draws."""
