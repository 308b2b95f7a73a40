"""The `spacerl` command: parsing, printing, exit codes. Whatever is heavy is imported by the command that needs it."""

from spacerl.cli.main import main

__all__ = ["main"]
