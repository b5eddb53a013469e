"""The consoles of commands that print tables. A server prints only lines and never loads this."""

from rich.console import Console

out = Console()
err = Console(stderr=True, highlight=False, soft_wrap=True)
