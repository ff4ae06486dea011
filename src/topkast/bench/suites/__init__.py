"""The suites, one file each: what is measured, and how it is shown."""
