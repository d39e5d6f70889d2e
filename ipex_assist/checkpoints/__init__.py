"""Stored models: a hub id, a folder or a GGUF file, as one config and named tensors."""
