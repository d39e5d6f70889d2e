"""What this machine is, and which variables suit it. Never imports torch."""
