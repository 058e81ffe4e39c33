"""The command line: parses, calls and prints. Everything it calls can be called from Python as well."""
