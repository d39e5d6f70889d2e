"""Processes on cores: placement, numactl, and the check after the start. Never imports torch."""
