"""The torch executor, the readable reference, and the ipex executor, which differs from it in its kernels alone."""
