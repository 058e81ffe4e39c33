"""Code that runs inside the ranks: the only package that imports torch, DeepSpeed and transformers; never pandas."""
