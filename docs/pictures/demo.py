"""Write demo.svg: the screen of ``millstream demo`` at its end. Run it from the repository: python docs/pictures/demo.py"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from millstream.cli.demo import run_demo
from millstream.cli.demo.account import Account
from millstream.cli.demo.show import WIDTH, Show

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_name("demo.svg")

# As rich's own format, but with a font that every system has: the picture loads nothing.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class LastScreen(Show):
    """A show that keeps what is on the screen when the account is printed."""

    def account(self, account: Account) -> None:
        letters = [replace(letter, traceback=letter.traceback.replace(f"{ROOT}/", "")) for letter in account.letters]
        super().account(replace(account, letters=letters))
        svg = self._console.export_svg(title="make demo", theme=MONOKAI, code_format=FORMAT, unique_id="demo")
        PICTURE.write_text(svg)


def main() -> int:
    console = Console(record=True, width=WIDTH, force_terminal=True, force_interactive=False, highlight=False)
    return run_demo(LastScreen(console))


if __name__ == "__main__":
    sys.exit(main())
