"""The version, alone, so that setup.py and `--version` read it without importing anything else."""

__version__ = "0.1.0"
