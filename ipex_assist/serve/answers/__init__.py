"""From the parts of texts to answers: whole, or as events of a stream."""
