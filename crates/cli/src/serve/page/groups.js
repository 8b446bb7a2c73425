'use strict';
// The groups of a process as they work, and one of them in detail.

// The windows that the server has figures of, in seconds.
const WINDOWS = FIGURES.windows.map((w) => [String(w), w < 60 ? `${w} s` : `${w / 60} min`]);

// How figures are written, and how wide their columns are; the second where the window is narrow.
const UNITS = {
  percent: { text: figure, width: '78px', narrowWidth: '76px' },
  rate: { text: figure, width: '84px', narrowWidth: '58px' },
  time: { text: time, width: '92px', narrowWidth: '76px' },
  whole: { text: whole, width: '72px' },
  text: { text: clean },
};

// The columns that the server names, with the bar of shares as the last.
function groupColumns() {
  const figures = FIGURES.columns.filter(({ unit }) => unit !== 'share');
  return [
    {
      id: 'name',
      label: 'Group',
      width: 'minmax(140px, 1.5fr)',
      narrowWidth: 'minmax(90px, 1fr)',
      narrow: true,
      value: (row) => row.name,
      text: (row) => clean(row.name),
    },
    ...figures.map(({ id, label, help, unit, leaves }) => ({
      ...UNITS[unit],
      id,
      label,
      title: help,
      number: true,
      narrow: !leaves,
      roomy: leaves === 1,
      value: (row) => row[id],
      text: (row) => UNITS[unit].text(row[id]),
    })),
    {
      id: 'spent',
      label: 'Where time goes',
      title: 'On CPU, stalled in a poll, runnable, awaiting, queued',
      width: 'minmax(110px, 1fr)',
      value: (row) => (row.spent?.some(Boolean) ? row.spent[0] : null),
      fill: (cell, row) => {
        if (!cell.firstChild) cell.append(make('span.spent', { role: 'img' }));
        spentBar(cell.firstChild, row.spent);
        cell.firstChild.setAttribute('aria-label', spentLines(row.spent).join(', '));
      },
    },
  ];
}

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
      sort: FIGURES.columns.find(({ sorts }) => sorts).id,
      key: (row) => row.id,
      empty: 'No group yet. A service names its groups itself, or by the route of each request.',
      open: (row) => route.go({ ...route.now, group: row.name }),
      onsort: (sort) => route.change({ sort }),
      tip: (row, column) => column === 'spent' && [row.name, ...spentLines(row.spent)],
      columns: groupColumns(),
    });
    if (route.now.sort) this.grid.setSort(route.now.sort);
    this.detail = null;
    this.side = make('section.detail', { hidden: true });
    const legend = make(
      'ul.legend',
      { 'aria-label': 'Where time goes' },
      ...SHARES.map(({ id, label }) => make('li', {}, make('i.' + id), label)),
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
