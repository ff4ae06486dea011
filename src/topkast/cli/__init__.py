"""The command line: commands parse, call, print."""
