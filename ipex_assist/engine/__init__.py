"""The engine: batches many requests into shared passes; each gets the tokens it would get alone."""
