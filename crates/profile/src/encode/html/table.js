'use strict';
// The table: functions with what they used by themselves and with all that they called.

const FIRST_ROWS = 300;

class FunctionTable {
  constructor(element) {
    this.element = element;
    this.sort = 'self';
    this.down = true;
    this.all = false;
    this.onpick = this.onsort = this.onselect = () => {};
  }

  // Shows the functions of a tree's rows; of a byte for each function, those that are looked for.
  show(tree, palette, matching) {
    Object.assign(this, { tree, palette, matching });
    if (this.selection !== tree.selection) {
      this.selection = tree.selection;
      const [now, before] = tree.selection.functions();
      this.rows = tree.model.data.functions.map((name, fn) => ({
        fn, name, self: now.self[fn], total: now.total[fn],
        selfBefore: before.self[fn], totalBefore: before.total[fn],
        selfChange: now.self[fn] - before.self[fn], totalChange: now.total[fn] - before.total[fn],
      })).filter((row) => row.total || row.totalBefore);
    }
    this.render();
  }

  columns() {
    const columns = [['self', 'Self', 1], ['total', 'Total', 1]];
    if (!this.tree.model.diff) return columns;
    return [...columns, ['selfChange', 'Self, change', 1], ['totalChange', 'Total, change', 1]];
  }

  sorted() {
    const { sort, down, matching } = this;
    const rows = matching ? this.rows.filter((row) => matching[row.fn]) : [...this.rows];
    const size = (row) => (sort.endsWith('Change') ? Math.abs(row[sort]) : row[sort]);
    const order = sort === 'name'
      ? (a, b) => (a.name < b.name ? -1 : 1)
      : (a, b) => size(b) - size(a) || b.total - a.total || (a.name < b.name ? -1 : 1);
    rows.sort(order);
    return down ? rows : rows.reverse();
  }

  render() {
    const rows = this.sorted();
    const shown = this.all ? rows : rows.slice(0, FIRST_ROWS);
    const table = document.createElement('table');
    const head = table.createTHead().insertRow();
    for (const [key, label, number] of [...this.columns(), ['name', 'Function', 0]]) {
      const cell = document.createElement('th');
      cell.scope = 'col';
      if (number) cell.className = 'number';
      if (key === this.sort) cell.setAttribute('aria-sort', this.down ? 'descending' : 'ascending');
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = label;
      button.dataset.sort = key;
      button.addEventListener('click', () => this.sortBy(key));
      cell.append(button);
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of shown) body.append(this.row(row));
    body.rows[0]?.setAttribute('tabindex', '0');
    this.element.replaceChildren(table);
    if (rows.length > shown.length) {
      const more = document.createElement('button');
      more.className = 'more';
      more.textContent = `Show all ${rows.length.toLocaleString('en')} functions`;
      more.addEventListener('click', () => {
        this.all = true;
        this.render();
      });
      this.element.append(more);
    }
    if (!rows.length) this.element.append('No function has this name.');
  }

  row(row) {
    const { tree, palette } = this;
    const { model, column, selection } = tree;
    const { unit } = model.data.columns[column];
    const rate = model.isRate(column);
    const whole = selection.total(0) || selection.total(1);
    const line = document.createElement('tr');
    line.dataset.fn = row.fn;
    line.tabIndex = -1;
    for (const [key] of this.columns()) {
      const cell = line.insertCell();
      cell.className = 'number';
      const value = row[key];
      const figure = document.createElement('span');
      const share = document.createElement('small');
      figure.textContent = formatted(value, unit, rate);
      share.textContent = percent(value, whole);
      if (key.endsWith('Change')) {
        figure.textContent = signed(figure.textContent, value);
        const of = key.slice(0, -6);
        share.textContent = change(row[of], row[of + 'Before']);
        if (value) cell.classList.add(value > 0 ? 'grew' : 'shrank');
      } else {
        cell.classList.add('bar');
        cell.style.setProperty('--share', Math.min(100, (100 * value) / (whole || 1)).toFixed(1) + '%');
      }
      cell.append(figure, share);
    }
    const name = line.insertCell();
    name.className = 'name';
    const chip = document.createElement('i');
    chip.style.background = palette.of(model.data.library[row.fn]);
    const text = document.createElement('span');
    text.textContent = row.name;
    const place = document.createElement('small');
    place.textContent = [model.data.libraries[model.data.library[row.fn]], model.place(row.fn)]
      .filter(Boolean).join(' · ');
    name.append(chip, text, place);
    // The first click chooses a row, another one shows its function in the picture.
    line.addEventListener('click', () => {
      if (this.clicked === line) this.onpick(row);
      else this.focus(line);
      this.clicked = line;
    });
    line.addEventListener('focus', () => this.onselect(row));
    return line;
  }

  sortBy(key) {
    this.down = this.sort === key ? !this.down : true;
    this.sort = key;
    this.render();
    this.element.querySelector(`[data-sort="${key}"]`).focus();
    this.onsort();
  }

  focus(line) {
    for (const other of this.element.querySelectorAll('tr[tabindex="0"]')) other.tabIndex = -1;
    line.tabIndex = 0;
    line.focus();
  }

  // Moves the focus by a number of rows.
  move(step) {
    const lines = [...this.element.querySelectorAll('tbody tr')];
    const at = lines.indexOf(document.activeElement);
    const to = lines[at < 0 ? 0 : Math.min(Math.max(at + step, 0), lines.length - 1)];
    if (to) this.focus(to);
  }

  // Looks for the function whose row has the focus.
  pick() {
    const fn = document.activeElement?.dataset?.fn;
    if (fn === undefined) return false;
    this.onpick(this.rows.find((row) => row.fn === Number(fn)));
    return true;
  }
}
