"""Models of transformers: built, cut into parts, observed. Imports torch, never pandas."""
