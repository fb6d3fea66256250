"""Train, translate, evaluate, search: `python -m dotformer --help` says how."""

import sys
import threading

if __name__ == "__main__":
    try:
        from dotformer.command_line.commands import main
    except KeyboardInterrupt:  # PyTorch takes seconds to load
        sys.exit(130)
    # TensorBoard writes in a thread; what fails there is raised in this one too
    threading.excepthook = lambda _: None
    sys.exit(main())
