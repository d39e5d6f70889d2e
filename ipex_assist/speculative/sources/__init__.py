"""Who drafts: models, heads, prompt lookup, grammars."""
