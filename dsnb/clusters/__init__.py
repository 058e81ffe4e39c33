"""Runs on groups of nodes beside each other: the spread, who is slow and on what evidence, in what nodes differ."""

from dsnb.clusters.report import compared, section

__all__ = ["compared", "section"]
