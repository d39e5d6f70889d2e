"""Text generation for users: streams, results, statistics, and models that transformers runs for us."""
