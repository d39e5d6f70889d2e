"""Numbers of rows that the C++ core and Python agree on. `library` compares them with those of the core it loads."""

PASS_ROWS = 256  # rows of one pass at most: bounds the activations, and is many enough for full speed; Python's choice
DECODE_ROWS = 16  # passes of up to so many rows take the decode path
PENDING_ROWS = 16  # rows behind a recurrent state, which can be forgotten again
BLOCK = 256  # positions in a block of keys and values
