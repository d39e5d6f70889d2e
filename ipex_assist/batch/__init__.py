"""Many prompts over pinned instances: one queue, one result file."""
