"""Builds responses from output chunks: whole, or as events of a stream."""
