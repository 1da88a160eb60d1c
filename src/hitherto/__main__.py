"""`python -m hitherto` is the command line, where its script is not on the path.

There is nothing else here: see `hitherto.cli`.
"""

from .cli import main

if __name__ == "__main__":
    main()
