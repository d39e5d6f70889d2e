"""Drafting and verification: sources, acceptance, schedules, and what a draft costs."""
