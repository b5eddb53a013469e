"""Where commands that print tables print them. A server prints lines, and loads none of this."""

from rich.console import Console

out = Console()
err = Console(stderr=True, highlight=False, soft_wrap=True)
