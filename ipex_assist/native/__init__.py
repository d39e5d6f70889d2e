"""The native core: a C++ library that runs a whole forward pass in one call, and its Python side."""
