"""The tests named in feared.toml notice the defects that real code has had, or that readers would make."""

import subprocess
import sys


def test_feared_defects_are_noticed(root):
    command = [sys.executable, "-m", "tests.mutants.feared"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
