"""The command line: parses options, calls the package and prints. Python code can call the same functions."""
