"""Executors run a DecoderSpec: native (our C++ core), ipex (IPEX's kernels), torch (the readable reference)."""
