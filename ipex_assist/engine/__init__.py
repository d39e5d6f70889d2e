"""The engine: many texts in the same passes, each as if it were alone."""
