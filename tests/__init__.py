"""Tests of dsnb, in the same folders as the modules that they test."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
