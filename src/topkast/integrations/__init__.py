"""Thin layers between topkast and training frameworks. A module here needs its framework."""
