"""GB/s that the CPUs named on the command line read at this moment, as one line of JSON: what bounds every peer."""

from __future__ import annotations

import json
import sys

from ipex_assist.native.library import Pool, read_bandwidth


def main() -> None:
    cpus = json.loads(sys.argv[1])
    pool = Pool(len(cpus), cpus)
    print(json.dumps({"GB_per_s": read_bandwidth(pool, repeats=3)}))
    pool.close()


if __name__ == "__main__":
    main()
