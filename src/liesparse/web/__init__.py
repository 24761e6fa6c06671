"""The explorer: a learned model in the browser, served by FastAPI or written to one HTML file."""

from jinja2 import Environment, PackageLoader

TEMPLATES = Environment(loader=PackageLoader("liesparse.web", "page"), autoescape=True, keep_trailing_newline=True)
