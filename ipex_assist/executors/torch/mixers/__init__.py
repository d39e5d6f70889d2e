"""The reference of each mixer, a file each: rows in, what its output linear reads out."""
