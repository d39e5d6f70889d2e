"""Number formats: groups of int4, GPTQ, AWQ, round to nearest."""
