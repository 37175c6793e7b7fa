"""`python -m hessianlens` is the command line."""

from hessianlens.cli import app

if __name__ == "__main__":
    app(prog_name="hessianlens")
