"""Number formats: int4 in groups, GPTQ, AWQ, round to nearest."""
