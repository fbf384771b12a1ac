"""`python -m trl_credit`, which is the command `trl-credit`."""

import sys

from .cli import main


if __name__ == "__main__":
    sys.exit(main())
