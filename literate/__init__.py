"""The author's tools: read a chapter, tangle it into the package, weave it into a notebook, index names, render."""

import sys

# jsonschema, which nbformat imports, builds 38 grammars with this, for a second: formats of addresses in no notebook
sys.modules.setdefault("rfc3987_syntax", None)
