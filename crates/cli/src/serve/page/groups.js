'use strict';
// The groups of a process as they work, and one of them in detail.

const WINDOWS = [
  ['1', '1 s'],
  ['10', '10 s'],
  ['60', '1 min'],
  ['600', '10 min'],
];

class GroupsView {
  constructor(panel, pid, live) {
    this.live = live;
    this.filter = filterBox('Filter groups', route.now.find, (find) => {
      route.change({ find });
      this.draw();
    });
    this.over = choice('Figures of the last', WINDOWS, this.length(), (w) => {
      route.change({ w: w === '10' ? '' : w });
      this.tick();
    });
    this.pause = button('Pause', () => this.toggle(), { 'aria-pressed': false, title: 'Pause (Space)' });
    this.grid = new Grid({
      label: 'Groups',
      sort: 'cpu',
      key: (row) => row.id,
      empty: 'No group yet. A service names its groups itself, or by the route of each request.',
      open: (row) => route.go({ ...route.now, group: row.name }),
      onsort: (sort) => route.change({ sort }),
      tip: (row, column) => column === 'spent' && [row.name, ...spentLines(row.spent)],
      columns: [
        {
          id: 'name',
          label: 'Group',
          width: 'minmax(140px, 1.5fr)',
          narrowWidth: 'minmax(90px, 1fr)',
          narrow: true,
          value: (row) => row.name,
          text: (row) => clean(row.name),
        },
        {
          id: 'cpu',
          label: 'CPU %',
          title: 'CPU time, of one CPU',
          width: '78px',
          narrowWidth: '76px',
          number: true,
          narrow: true,
          value: (row) => row.cpu,
          text: (row) => figure(row.cpu),
        },
        {
          id: 'perRequest',
          label: 'CPU/req',
          title: 'CPU time used, by requests ended',
          width: '92px',
          number: true,
          value: (row) => row.perRequest,
          text: (row) => time(row.perRequest),
        },
        {
          id: 'requests',
          label: 'Req/s',
          title: 'Requests that ended',
          width: '78px',
          narrowWidth: '58px',
          number: true,
          narrow: true,
          value: (row) => row.requests,
          text: (row) => figure(row.requests),
        },
        {
          id: 'polls',
          label: 'Polls/s',
          width: '84px',
          number: true,
          roomy: true,
          value: (row) => row.polls,
          text: (row) => figure(row.polls),
        },
        {
          id: 'p50',
          label: 'p50',
          title: 'Half of the requests that ended took at most this long',
          width: '88px',
          number: true,
          value: (row) => row.p50,
          text: (row) => time(row.p50),
        },
        {
          id: 'p99',
          label: 'p99',
          width: '88px',
          narrowWidth: '76px',
          number: true,
          narrow: true,
          value: (row) => row.p99,
          text: (row) => time(row.p99),
        },
        {
          id: 'alive',
          label: 'Alive',
          title: 'Tasks that are there now',
          width: '72px',
          number: true,
          roomy: true,
          value: (row) => row.alive,
          text: (row) => whole(row.alive),
        },
        {
          id: 'spent',
          label: 'Where time goes',
          title: 'On CPU, stalled in a poll, runnable, awaiting',
          width: 'minmax(110px, 1fr)',
          value: (row) =>
            row.spent.some(Boolean) ? row.spent[0] / row.spent.reduce((a, b) => a + b) : null,
          fill: (cell, row) => {
            if (!cell.firstChild) cell.append(make('span.spent', { role: 'img' }));
            spentBar(cell.firstChild, row.spent);
            cell.firstChild.setAttribute('aria-label', spentLines(row.spent).join(', '));
          },
        },
      ],
    });
    if (route.now.sort) this.grid.setSort(route.now.sort);
    this.detail = null;
    this.side = make('section.detail', { hidden: true });
    const legend = make(
      'ul.legend',
      { 'aria-label': 'Where time goes' },
      ...SPENT.map(([name, text]) => make('li', {}, make('i.' + name), text)),
    );
    panel.append(
      make(
        'div.bar',
        {},
        this.filter,
        make('label', {}, make('span', {}, 'Last'), this.over),
        this.pause,
        legend,
      ),
      make('div.split', {}, this.grid.element, this.side),
    );
    this.follow(route.now);
  }

  length() {
    return WINDOWS.some(([key]) => key === route.now.w) ? route.now.w : '10';
  }

  toggle() {
    this.paused = !this.paused;
    this.pause.setAttribute('aria-pressed', this.paused);
    setText(this.pause, this.paused ? 'Go on' : 'Pause');
    if (!this.paused) this.tick();
  }

  follow(place) {
    this.over.value = this.length();
    if (document.activeElement !== this.filter) this.filter.value = place.find || '';
    if (place.sort) this.grid.setSort(place.sort);
    if ((place.group || '') !== (this.detail?.name || '')) {
      this.detail?.close();
      this.detail = place.group ? new GroupDetail(this.side, place.group, this.live) : null;
      this.side.hidden = !this.detail;
    }
    this.tick();
  }

  tick() {
    if (this.paused) return;
    this.draw();
    this.detail?.draw(Number(this.length()));
  }

  draw() {
    const find = (route.now.find || '').toLowerCase();
    const rows = this.live.rows(Number(this.length()));
    this.grid.show(find ? rows.filter(({ name }) => name.toLowerCase().includes(find)) : rows);
  }

  back() {
    if (!this.detail) return false;
    const { group, ...place } = route.now;
    route.go(place);
    this.grid.focus();
    return true;
  }

  onKey({ key }) {
    if (key !== ' ') return false;
    this.toggle();
    return true;
  }

  repaint() {
    this.detail?.repaint();
  }

  close() {
    this.grid.close();
    this.detail?.close();
  }
}
