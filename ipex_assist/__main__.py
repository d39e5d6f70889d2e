"""`python -m ipex_assist` is `ipex-assist`."""

import sys

from ipex_assist.cli import main

sys.exit(main())
