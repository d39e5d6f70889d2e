"""What was measured: seconds of passes and drafts, acceptance rates, and where they are kept."""
