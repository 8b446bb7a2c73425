'use strict';
// A table of any length: only the rows in sight are elements, so ten thousand cost as much as forty.
// The table itself has the focus, and says which row is active; rows come and go below it.

const ROW_HEIGHT = 30;
const BEYOND = 6;
// Widths, in px, from which a table has its columns but those for roomy ones, and all of them.
const NARROW = 600;
const ROOMY = 880;
let grids = 0;

class Grid {
  // `columns`: { id, label, title, width, number, narrow, roomy, value(row), text(row), fill(cell, row) };
  // `narrow` ones are left on a phone, `roomy` ones go first. `key(row)` names a row for as long as it
  // lives; `open(row)` is what Enter does, `onsort` hears of another order.
  constructor({ label, columns, key, open, empty, sort, down = true, onsort, tip, height }) {
    Object.assign(this, { label, columns, key, open, empty, sort, down, onsort, height });
    this.name = 'grid' + grids++;
    this.rows = [];
    this.lines = [];
    this.active = null;
    this.head = make('div.line.head', { role: 'row', 'aria-rowindex': 1 });
    for (const column of columns) this.head.append(this.heading(column));
    this.sizer = make('div.sizer', { role: 'rowgroup' });
    this.body = make(
      'div.rows',
      { role: 'grid', tabindex: 0, 'aria-label': label },
      make('div', { role: 'rowgroup', class: 'heads' }, this.head),
      this.sizer,
    );
    this.none = make('p.empty', { hidden: true }, empty || 'Nothing.');
    this.element = make('div.grid', {}, this.body, this.none);
    this.element.grid = this;
    this.body.addEventListener('scroll', () => this.draw(), { passive: true });
    this.body.addEventListener('keydown', (event) => this.onKey(event));
    this.body.addEventListener('focus', () => this.active === null && this.rows.length && this.move(0));
    this.sizer.addEventListener('click', (event) => this.onClick(event));
    if (tip) {
      this.sizer.addEventListener('mousemove', (event) => {
        const row = this.rowOf(event.target);
        showTip(row && tip(row, event.target.closest('.cell')?.dataset.column), event);
      });
      this.sizer.addEventListener('mouseleave', () => showTip(null));
    }
    this.watcher = new ResizeObserver(() => this.layout());
    this.watcher.observe(this.body);
    this.sorted();
  }

  heading(column) {
    const { id, label, title } = column;
    const cell = make('div', {
      role: 'columnheader',
      title,
      class: this.classes(column),
      'data-column': id,
    });
    if (column.value) cell.append(button(label, () => this.sortBy(id), { tabindex: -1 }));
    else cell.append(label);
    return cell;
  }

  classes({ number, narrow, roomy }) {
    return `cell${number ? ' number' : ''}${narrow ? '' : roomy ? ' roomy-only' : ' wide-only'}`;
  }

  sorted() {
    for (const cell of this.head.children) {
      if (cell.dataset.column !== this.sort) cell.removeAttribute('aria-sort');
      else cell.setAttribute('aria-sort', this.down ? 'descending' : 'ascending');
    }
  }

  sortBy(id) {
    const column = this.columns.find((one) => one.id === id);
    if (!column) return;
    this.down = this.sort === id ? !this.down : Boolean(column.number);
    this.sort = id;
    this.sorted();
    this.show(this.rows);
    this.onsort?.((this.down ? '-' : '') + id);
    say(`Sorted by ${column.label}, ${this.down ? 'highest' : 'lowest'} first`);
  }

  // Sorts as a link says: "-cpu".
  setSort(text) {
    const id = text.replace(/^-/, '');
    if (!this.columns.some((one) => one.id === id && one.value)) return;
    [this.sort, this.down] = [id, text.startsWith('-')];
    this.sorted();
  }

  show(rows) {
    const column = this.columns.find(({ id }) => id === this.sort);
    if (column) {
      // An empty cell is less than all others, also where they are text.
      const none = column.number ? -Infinity : '';
      const value = (row) => {
        const of = column.value(row);
        return of === null || of === undefined || Number.isNaN(of) ? none : of;
      };
      const way = this.down ? -1 : 1;
      rows = [...rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        return x < y ? -way : x > y ? way : 0;
      });
    }
    this.rows = rows;
    this.none.hidden = rows.length > 0;
    setText(this.none, this.answered === false ? 'Looking …' : this.empty || 'Nothing.');
    this.body.setAttribute('aria-rowcount', rows.length + 1);
    this.layout();
  }

  // Whether the table is wide enough for a column.
  shows({ narrow, roomy }) {
    return narrow || (this.size !== 'narrow' && (!roomy || this.size === 'roomy'));
  }

  layout() {
    const wide = this.element.clientWidth;
    const size = wide < NARROW ? 'narrow' : wide < ROOMY ? 'middle' : 'roomy';
    if (size !== this.size) {
      this.size = size;
      this.element.dataset.size = size;
      const shown = this.columns.filter((column) => this.shows(column));
      this.body.style.setProperty(
        '--columns',
        shown.map((column) => (size === 'narrow' && column.narrowWidth) || column.width).join(' '),
      );
    }
    this.sizer.style.height = this.rows.length * ROW_HEIGHT + 'px';
    this.draw();
  }

  draw() {
    const high = this.body.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW_HEIGHT) - BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.body.scrollTop + high) / ROW_HEIGHT) + BEYOND);
    const count = Math.max(0, last - first);
    while (this.lines.length < count) {
      const line = make('div.line', { role: 'row' });
      for (const column of this.columns)
        line.append(
          make('div', { role: 'gridcell', class: this.classes(column), 'data-column': column.id }),
        );
      this.lines.push(line);
      this.sizer.append(line);
    }
    while (this.lines.length > count) this.lines.pop().remove();
    let active = '';
    for (let at = 0; at < count; at++) {
      const [line, row, index] = [this.lines[at], this.rows[first + at], first + at];
      const is = this.key(row) === this.active;
      line.id = `${this.name}-${index}`;
      if (is) active = line.id;
      line.row = row;
      line.setAttribute('aria-rowindex', index + 2);
      line.setAttribute('aria-selected', is);
      line.classList.toggle('odd', index % 2 === 1);
      line.classList.toggle('faint', Boolean(row.faint));
      line.style.top = index * ROW_HEIGHT + 'px';
      this.columns.forEach((column, of) => {
        const cell = line.children[of];
        if (column.fill) column.fill(cell, row);
        else setText(cell, column.text(row));
      });
    }
    if (active) this.body.setAttribute('aria-activedescendant', active);
    else this.body.removeAttribute('aria-activedescendant');
  }

  rowOf(element) {
    return element.closest('.line')?.row;
  }

  index() {
    return this.rows.findIndex((row) => this.key(row) === this.active);
  }

  move(step) {
    if (!this.rows.length) return;
    const at = this.index();
    this.select(at < 0 ? 0 : Math.min(Math.max(at + step, 0), this.rows.length - 1));
  }

  select(index) {
    this.active = this.key(this.rows[index]);
    const top = index * ROW_HEIGHT;
    const room = this.body.clientHeight - this.head.offsetHeight;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + ROW_HEIGHT > this.body.scrollTop + room) this.body.scrollTop = top + ROW_HEIGHT - room;
    this.draw();
  }

  focus() {
    this.body.focus();
  }

  onClick(event) {
    const row = this.rowOf(event.target);
    if (!row || event.target.closest('button, a')) return;
    const again = this.active === this.key(row);
    this.active = this.key(row);
    this.draw();
    if (this.open && (again || this.openAtOnce !== false)) this.open(row);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const side = Math.max(1, Math.floor(this.body.clientHeight / ROW_HEIGHT) - 2);
    const steps = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: side,
      PageUp: -side,
      Home: -Infinity,
      End: Infinity,
    };
    const steps2 = steps[event.key];
    if (steps2 !== undefined) {
      if (Number.isFinite(steps2)) this.move(steps2);
      else if (this.rows.length) this.select(steps2 < 0 ? 0 : this.rows.length - 1);
    } else if (event.key === 'Enter' && this.open && this.index() >= 0) this.open(this.rows[this.index()]);
    else if (event.key === 's') this.nextSort();
    else if (event.key === 'S') this.sortBy(this.sort);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  nextSort() {
    const able = this.columns.filter((column) => column.value && this.shows(column));
    const at = able.findIndex(({ id }) => id === this.sort);
    if (able.length) this.sortBy(able[(at + 1) % able.length].id);
  }

  close() {
    this.watcher.disconnect();
  }
}
