"""Reads and writes JSON, YAML and text from untrusted sources, within limits."""
