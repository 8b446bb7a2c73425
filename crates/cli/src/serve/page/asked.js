'use strict';
// A table below the tasks of a process that is asked for by a button, because the answer takes the
// service some time.

// A column: `id` is the row's, `more` what else a column of a grid has.
const shown = (id, label, width, text, more) => ({
  id,
  label,
  width,
  value: (row) => row[id] ?? 0,
  text: (row) => text(row[id], row),
  ...more,
});
const asText = (text) => text;
const atFile = ({ file, line }, parts = 1) => clean(`${file.split('/').slice(-parts).join('/')}:${line}`);

class AskedPart {
  // `path` is asked each `every` ms; `wait` are the words until the first answer has come.
  constructor(pid, grid, { word, wait, every, path }) {
    Object.assign(this, { pid, wait, every, path });
    this.told = make('p.facts', { role: 'status', hidden: true });
    this.grid = new Grid(grid);
    this.grid.element.classList.add('below');
    this.grid.element.hidden = true;
    this.button = button(word, () => this.toggle(), { 'aria-pressed': false });
  }

  toggle() {
    const isOn = !this.poll;
    this.button.setAttribute('aria-pressed', isOn);
    this.told.hidden = this.grid.element.hidden = !isOn;
    if (!isOn) {
      this.poll.close();
      this.poll = null;
      return;
    }
    setText(this.told, this.wait);
    this.grid.answered = false;
    this.poll = new Poll(
      this.every,
      () => processPath(this.pid, this.path),
      (answer) => {
        page.fail(null);
        this.grid.answered = true;
        const { told, rows } = this.rows(answer);
        setText(this.told, told);
        this.grid.show(rows);
      },
      (error) => page.fail(error),
    );
  }

  close() {
    this.poll?.close();
    this.grid.close();
  }
}
