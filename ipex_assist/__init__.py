"""Assisted generation for Hugging Face LLMs on Intel Xeon."""
