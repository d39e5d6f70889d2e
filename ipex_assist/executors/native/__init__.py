"""The native executor: a checkpoint packed into the C++ core's image, and a Model and Sequences over it."""
