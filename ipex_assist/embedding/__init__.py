"""Embeddings and relevance scores: texts in, a vector or a score each, from hidden states and no logits."""
