"""What runs inside the ranks. The only package that imports torch, DeepSpeed and transformers; never pandas."""
