"""Generated text: loading, streams, results, statistics, and models that transformers runs."""
