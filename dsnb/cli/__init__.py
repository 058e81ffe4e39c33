"""The command line: parses options, calls the package and prints."""
