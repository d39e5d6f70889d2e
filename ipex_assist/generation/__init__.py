"""Texts: streams of them, results, statistics, and what transformers runs for us."""
