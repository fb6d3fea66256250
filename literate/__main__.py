"""Starts the command line so that Ctrl-C, or a plain kill, ends it in one line at any moment."""

import signal
import sys


def start() -> int:
    """Run the command line; returns its exit code, 130 after an interruption."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from literate.command_line import main  # takes a second, in which an interruption may come as well

        return main()
    except KeyboardInterrupt:
        print("interrupted: every notebook is whole, the unfinished ones are as they were", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
