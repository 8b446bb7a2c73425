'use strict';
// All processes of the host that have dormouse in them.

const NO_PROCESS = 'No process of this host has dormouse in it. A service has it after dormouse::init().';

// A later process may have the same number.
const identity = (row) => `${row.pid} ${row.start_ticks}`;

class ProcessesView {
  constructor(panel) {
    this.seen = new Map();
    this.filter = filterBox('Filter processes', route.now.find, (find) => {
      route.change({ find });
      this.draw();
    });
    this.grid = new Grid({
      label: 'Processes',
      sort: route.now.sort ? undefined : 'pid',
      down: false,
      key: identity,
      open: (row) => !row.refused && route.go({ p: String(row.pid), v: 'groups' }),
      onsort: (sort) => route.change({ sort }),
      columns: [
        {
          id: 'pid',
          label: 'PID',
          width: '90px',
          number: true,
          narrow: true,
          narrowWidth: '80px',
          value: (row) => row.pid,
          text: (row) => String(row.pid),
        },
        {
          id: 'name',
          label: 'Name',
          width: 'minmax(140px, 2fr)',
          narrow: true,
          value: (row) => row.name,
          fill: (cell, row) => this.name(cell, row),
        },
        {
          id: 'uid',
          label: 'UID',
          width: '80px',
          number: true,
          value: (row) => row.uid,
          text: (row) => String(row.uid),
        },
        {
          id: 'keys',
          label: 'Keys',
          width: '80px',
          number: true,
          narrow: true,
          narrowWidth: '60px',
          value: (row) => row.agent?.keys,
          text: (row) => whole(row.agent?.keys),
        },
        {
          id: 'sites',
          label: 'Sites',
          width: '80px',
          number: true,
          value: (row) => row.agent?.sites,
          text: (row) => whole(row.agent?.sites),
        },
        {
          id: 'version',
          label: 'Version',
          width: '110px',
          value: (row) => row.agent?.version,
          text: (row) => clean(row.agent?.version || NO),
        },
        {
          id: 'exe',
          label: 'Program',
          width: 'minmax(120px, 3fr)',
          value: (row) => row.agent?.exe,
          text: (row) => clean(row.refused?.message || row.agent?.exe || NO),
        },
      ],
    });
    if (route.now.sort) this.grid.setSort(route.now.sort);
    panel.append(make('div.bar', {}, make('h1', {}, 'Processes'), this.filter), this.grid.element);
    this.grid.answered = false;
    this.draw();
    this.poll = new Poll(
      2000,
      () => 'api/processes',
      (answer) => this.take(answer.processes),
      (error) => page.fail(error),
    );
  }

  name(cell, row) {
    const text = clean(row.name);
    if (cell.dataset.shown === text + row.pid + row.ended) return;
    cell.dataset.shown = text + row.pid + row.ended;
    const label = row.refused
      ? make('span.name', {}, text)
      : make('a.name', { href: route.link({ p: String(row.pid), v: 'groups' }), tabindex: -1 }, text);
    cell.replaceChildren(label, row.ended ? make('span.badge', {}, 'ended') : '');
  }

  // A process that has gone stays for a while, marked.
  take(processes) {
    page.fail(null);
    this.grid.answered = true;
    const now = Date.now();
    for (const row of this.seen.values()) row.gone ||= now;
    for (const row of processes) this.seen.set(identity(row), row);
    for (const [key, row] of this.seen) {
      row.ended = row.faint = Boolean(row.gone);
      if (row.gone && now - row.gone > 60e3) this.seen.delete(key);
    }
    this.draw();
  }

  draw() {
    const find = (route.now.find || '').toLowerCase();
    this.grid.empty = find ? 'No process has this name.' : NO_PROCESS;
    this.grid.show(
      [...this.seen.values()].filter(
        (row) => !find || `${row.name} ${row.pid}`.toLowerCase().includes(find),
      ),
    );
  }

  close() {
    this.poll.close();
    this.grid.close();
  }
}
