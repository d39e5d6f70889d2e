"""Tokens chosen from logits: sampling, grammars, verification of drafts."""
