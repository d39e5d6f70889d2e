"""The routes, each a few lines: what is asked for goes to the service, what comes back to a writer."""
