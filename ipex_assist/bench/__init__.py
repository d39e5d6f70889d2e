"""`ipex-assist bench`: the experiments of published tables, plain and assisted in one run."""
