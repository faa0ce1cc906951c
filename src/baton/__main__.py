"""`python -m baton`: the command, where it is not on the path."""

from baton.cli.main import main

if __name__ == "__main__":
    main()
