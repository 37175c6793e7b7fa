"""The program: `hessianlens` and `python -m hessianlens` are the command line."""

import sys
from typing import NoReturn

from hessianlens.program import draw_into_files, import_torch_uninterrupted, program_streams, show_warnings
from hessianlens.safe_path import forget_current_folder


def main() -> None:
    """Run the command line; exit code 2 if the packages it needs are not installed."""
    forget_current_folder()
    show_warnings()
    draw_into_files()
    import_torch_uninterrupted()
    with program_streams():
        _run()


def _run() -> None:
    try:
        from hessianlens.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("hessianlens", "hessianlab")):
            raise
        needed = f"the command line needs {error.name}, which is not installed"
        _end(f"hessianlens: {needed}; install it with: pip install {(error.name or '').partition('.')[0]}.", 2)
    except KeyboardInterrupt:
        _end("hessianlens: interrupted; nothing had started.", 130)
    app(prog_name="hessianlens")


def _end(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
