"""What several subcommands share: their options, loading, output, and starting again under a placement."""
