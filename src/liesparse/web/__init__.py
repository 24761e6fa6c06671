"""The explorer: a learned model in the browser, served by FastAPI or written to one HTML file."""
