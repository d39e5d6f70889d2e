"""`ipex-assist distill`: a draft head of the user's own, for a target and prompts. Trained by `speculators`."""
