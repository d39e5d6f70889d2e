"""Numbers of rows that the C++ core and Python agree on. `library` compares them with those of the core it loads."""

# Rows that a pass of any model has room for, with or without logits; executors/native/pass_rows.py says where it has
# room for more without.
PASS_ROWS = 256
DECODE_ROWS = 16  # passes of up to so many rows take the decode path
PENDING_ROWS = 16  # rows behind the state of a sequence, which can be forgotten again
BLOCK = 256  # positions in a block of keys and values
