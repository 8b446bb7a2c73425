#!/usr/bin/env python3
"""Draws docs/pictures/top.svg: the screen of `dormouse top` in a real run.

    cargo build --release && docs/pictures/top.py

The script starts the demo service under load, runs `top` on a terminal of its own, and draws what
stands on the screen after some seconds. It needs Python alone.
"""

import fcntl, html, os, pathlib, pty, re, select, struct, subprocess, termios, time

HERE = pathlib.Path(__file__).resolve().parent
DORMOUSE = pathlib.Path(os.environ.get("DORMOUSE", HERE.parent.parent / "target/release/dormouse"))
ROWS, COLUMNS, SECONDS = 20, 96, 8
CELL_X, CELL_Y, MARGIN, SIZE = 8.4, 18, 14, 14
BACK, TEXT = "#1c1f24", "#d0d4da"
# The sixteen colours of a terminal.
COLOURS = ["#3b4048", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d0d4da",
           "#7f848e", "#ef8088", "#a9d48a", "#f0cf8a", "#79c0ff", "#d58fe8", "#6fcad6", "#ffffff"]
PLAIN = (None, None, False, False)  # foreground, background, bold, reversed


class Screen:
    """As much of a terminal as `top` uses."""

    def __init__(self):
        self.cells = [[(" ", PLAIN)] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.style = PLAIN

    def feed(self, text):
        """Takes whole sequences, and gives back what is not whole yet."""
        pattern = re.compile(r"\x1b\[([?>]?)([\d;:]*)([@-~])|\x1b[()].|\x1b[=>78]|[^\x1b]")
        at = 0
        while at < len(text):
            match = pattern.match(text, at)
            if not match:
                return text[at:]
            at = match.end()
            if match.group(3):
                if not match.group(1):
                    self.control(match.group(3), [int(n or 0) for n in re.split("[;:]", match.group(2))])
            elif len(match.group(0)) == 1:
                self.put(match.group(0))
        return ""

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row = min(self.row + 1, ROWS - 1)
        elif character >= " " and self.row < ROWS and self.column < COLUMNS:
            self.cells[self.row][self.column] = (character, self.style)
            self.column += 1

    def control(self, letter, numbers):
        first = numbers[0]
        if letter in "Hf":
            self.row = (first or 1) - 1
            self.column = (numbers[1] if len(numbers) > 1 and numbers[1] else 1) - 1
        elif letter == "G":
            self.column = (first or 1) - 1
        elif letter in "ABCD":
            step = first or 1
            self.row += {"A": -step, "B": step}.get(letter, 0)
            self.column += {"C": step, "D": -step}.get(letter, 0)
        elif letter == "J":
            self.cells = [[(" ", PLAIN)] * COLUMNS for _ in range(ROWS)]
        elif letter == "K":
            for column in range(self.column, COLUMNS):
                self.cells[self.row][column] = (" ", PLAIN)
        elif letter == "m":
            self.paint(numbers)

    def paint(self, numbers):
        front, back, bold, reverse = self.style
        while numbers:
            n = numbers.pop(0)
            if n == 0:
                front, back, bold, reverse = PLAIN
            elif n in (1, 22):
                bold = n == 1
            elif n in (7, 27):
                reverse = n == 7
            elif 30 <= n <= 37 or 90 <= n <= 97:
                front = COLOURS[n - 30 if n < 90 else n - 82]
            elif 40 <= n <= 47 or 100 <= n <= 107:
                back = COLOURS[n - 40 if n < 100 else n - 92]
            elif n in (38, 48):
                kind = numbers.pop(0)
                colour = COLOURS[numbers.pop(0) % 16] if kind == 5 else "#%02x%02x%02x" % tuple(
                    numbers.pop(0) for _ in range(3))
                front, back = (colour, back) if n == 38 else (front, colour)
            elif n == 39:
                front = None
            elif n == 49:
                back = None
        self.style = (front, back, bold, reverse)


def capture():
    """The screen of `top` on a service under load."""
    load = [str(DORMOUSE), "teaparty", "--load", "400", "--for", "60s"]
    with subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        time.sleep(2)
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.environ.pop("NO_COLOR", None)
            os.execv(DORMOUSE, ["dormouse", "top", str(service.pid)])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        screen, rest, end = Screen(), "", time.time() + SECONDS
        while time.time() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                rest = screen.feed(rest + os.read(terminal, 65536).decode("utf-8", "replace"))
        os.write(terminal, b"q")
        os.waitpid(pid, 0)
        service.terminate()
    return screen


def draw(screen):
    """The screen as SVG: a text element for each run of one style, at its place."""
    width, height = COLUMNS * CELL_X + 2 * MARGIN, ROWS * CELL_Y + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
           f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{SIZE}">',
           "<title>dormouse top, on a service under load</title>",
           f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>']
    for row, cells in enumerate(screen.cells):
        column = 0
        while column < COLUMNS:
            style, begin = cells[column][1], column
            while column < COLUMNS and cells[column][1] == style:
                column += 1
            text = "".join(character for character, _ in cells[begin:column])
            front, back, bold, reverse = style
            front, back = front or TEXT, back or BACK
            if reverse:
                front, back = back, front
            x, y = MARGIN + begin * CELL_X, MARGIN + row * CELL_Y
            indent = (len(text) - len(text.lstrip())) * CELL_X
            if back != BACK:
                out.append(f'<rect x="{x:g}" y="{y:g}" width="{(column - begin) * CELL_X:g}" '
                           f'height="{CELL_Y}" fill="{back}"/>')
            if text.strip():
                weight = ' font-weight="bold"' if bold else ""
                text = text.strip()
                out.append(f'<text x="{x + indent:g}" y="{y + SIZE - 1:g}" fill="{front}"{weight} '
                           f'xml:space="preserve" textLength="{len(text) * CELL_X:g}">'
                           f"{html.escape(text)}</text>")
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    (HERE / "top.svg").write_text(draw(capture()))
