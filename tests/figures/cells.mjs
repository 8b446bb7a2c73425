// The cells of the page for the events of a stream. Arguments: a file with the scripts of the page,
// and one with the data of its events, one a line. Prints as JSON what the table of groups, the
// detail of each group and the line of coverage show.

import { readFileSync } from 'node:fs';
import vm from 'node:vm';

const [scripts, events] = process.argv.slice(2).map((path) => readFileSync(path, 'utf8'));

// An element that keeps what the views put into it.
class Element {
  constructor() {
    Object.assign(this, { children: [], dataset: {}, attributes: {}, clientWidth: 900 });
    this.style = { setProperty() {} };
    this.classList = { toggle() {} };
  }
  get firstChild() {
    return this.children[0];
  }
  get lastChild() {
    return this.children.at(-1);
  }
  get textContent() {
    return this.children.map((child) => child.textContent ?? child).join('|');
  }
  set textContent(text) {
    this.children = [text];
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  setAttribute(key, value) {
    this.attributes[key] = value;
  }
  addEventListener() {}
  getContext() {
    return new Proxy({}, { get: () => () => {}, set: () => true });
  }
}

const byId = {};
const globals = {
  document: {
    hidden: true,
    documentElement: new Element(),
    createElement: () => new Element(),
    getElementById: (id) => (byId[id] ||= new Element()),
  },
  location: { hash: '' },
  AbortController,
  URLSearchParams,
  clearTimeout() {},
  addEventListener() {},
  ResizeObserver: class {
    observe() {}
  },
  getComputedStyle: () => ({ getPropertyValue: () => 'black' }),
  devicePixelRatio: 1,
  lines: events.trim().split('\n'),
  result: null,
};

const stubs = `
class uPlot { setData() {} }
class Grid {
  constructor({ columns }) { Object.assign(this, { columns, element: make('div') }); }
  setSort() {}
  show(rows) { this.rows = rows; }
}
class ProcessesView {} class KeysView {} class TraceView {} class TasksView {} class FlameView {}
class WatchesView {} class DoctorView {}
`;

const look = `
const live = new Live(7, () => {});
for (const line of lines) live.sample(JSON.parse(line));
const shown = {};
for (const w of ['1', '10']) {
  route.now = { w };
  const view = new GroupsView(make('div'), 7, live);
  view.tick();
  const rows = [...view.grid.rows].sort((a, b) => a.id - b.id);
  shown['last ' + w + ' s'] = rows.map((row) => {
    const cells = {};
    for (const { id, label, text, fill } of view.grid.columns) {
      if (id !== 'spent') cells[label] = text(row);
      else {
        const cell = make('div');
        fill(cell, row);
        const [bar] = cell.children;
        cells[label] = [bar.attributes['aria-label'], ...bar.children.map((part) => part.style.width)];
      }
    }
    const detail = new GroupDetail(make('section'), row.name, live);
    const charts = [];
    for (const chart of detail.charts) chart.draw = ([, values]) => charts.push(values);
    detail.draw(Number(w));
    cells.detail = {
      facts: detail.facts.textContent,
      times: detail.table.textContent,
      calls: detail.calls.textContent,
      traces: detail.traces.textContent.replace(/\\d\\d:\\d\\d:\\d\\d/g, 'HH:MM:SS'),
      charts,
      heat: detail.heat.columns.map(({ counts }) => [...counts].sort((a, b) => a[0] - b[0])),
      axis: detail.heat.canvas.attributes['aria-label'],
    };
    return cells;
  });
}
page.live = live;
page.cover();
shown.coverage = $('coverage').children.map((item) => item.textContent);
result = JSON.stringify(shown, null, 1);
`;

const context = vm.createContext(globals);
vm.runInContext(stubs + scripts.replace('page.start();', '') + look, context);
console.log(context.result);
