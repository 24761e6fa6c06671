"""The command line without a new process for each call: importing torch takes longer than most commands."""

import contextlib
import io
import subprocess
import sys
import traceback
import warnings

from liesparse.cli import main

COMMAND = [sys.executable, "-m", "liesparse"]


def run(*arguments, cwd=".", **options):
    """Run a command in this process, or with options such as ``env`` in one of its own; return what it printed."""
    words = [str(argument) for argument in arguments]
    if options:
        command = [*COMMAND, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, **options)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        errors = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        before, sys.argv = sys.argv, ["liesparse", *words]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            sys.argv = before
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())
