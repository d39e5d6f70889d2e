"""`python -m ipex_assist.launch` is `ipex-launch`."""

import sys

from ipex_assist.launch.cli import main

sys.exit(main())
