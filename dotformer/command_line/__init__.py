"""The command line: files, configurations and errors around what the chapters define. Written by hand."""
