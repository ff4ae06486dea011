"""`topkast bench`: what it measures, checks, compares with and writes down."""
