"""Data that is on every machine with Python or comes with a pip dependency, and readers for files."""
