"""Checkpoints: a hub id, a folder or a GGUF file, read as one config and named tensors."""
