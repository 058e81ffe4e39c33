"""Reads and writes JSON, YAML and text; input from untrusted sources is read within limits."""
