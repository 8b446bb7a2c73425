'use strict';
// One group in detail: CPU time and requests over time, its latencies as a map of heat, and where
// its tasks wait.

class GroupDetail {
  constructor(panel, name, live) {
    Object.assign(this, { panel, name, live });
    const head = make(
      'div.bar',
      {},
      make('h2.name', {}, clean(name)),
      button('Flame graph', () => route.go({ p: live.pid, v: 'flame', group: name })),
      button('Tasks', () => route.go({ p: live.pid, v: 'tasks', group: name })),
      button('✕', () => page.view.back(), { class: 'plain', 'aria-label': 'Close', title: 'Close (Esc)' }),
    );
    this.facts = make('p.facts');
    this.charts = [new Chart('CPU, % of one CPU', 'cpu'), new Chart('Requests per second', 'requests')];
    this.heat = new HeatMap();
    this.table = make('table.waits', {}, make('caption', {}, 'Times'));
    this.calls = make('table.waits.calls', { hidden: true });
    this.traces = make('table.waits', { hidden: true });
    panel.replaceChildren(
      head,
      this.facts,
      ...this.charts.map(({ element }) => element),
      this.heat.element,
      this.table,
      this.calls,
      this.traces,
    );
  }

  id() {
    for (const [id, group] of this.live.groups) if (group.name === this.name) return id;
    return null;
  }

  draw(length) {
    this.length = length;
    const { live } = this;
    const id = this.id();
    if (id === null) {
      setText(this.facts, live.ticks.length ? 'There is no group of this name now.' : 'No sample yet.');
      return;
    }
    const group = live.groups.get(id);
    const facts = [`${whole(group.alive)} alive`, `${whole(group.started)} began`];
    facts.push(`${whole(group.requests)} requests ended`, `${time(group.cpu_ns)} CPU`);
    const task = group.slowest_task ? ` by task ${group.slowest_task}` : '';
    if (group.slowest_ns) facts.push(`slowest ${time(group.slowest_ns)}${task}`);
    setText(this.facts, facts.join(' · '));
    const [at, cpu, requests] = [[], [], []];
    for (const tick of live.ticks) {
      const did = tick.groups.get(id) || tick.idle;
      at.push(tick.at);
      // CPU time that is refused has no line.
      cpu.push(did.cpu_percent);
      requests.push(did.requests_per_s);
    }
    this.charts[0].draw([at, cpu]);
    this.charts[1].draw([at, requests]);
    this.heat.draw(live, id);
    this.times(id, length);
    this.tellCalls(id, length);
    this.tellTraces(group.exemplars);
  }

  times(id, length) {
    const times = this.live.times(id, length);
    const rows = FIGURES.times.map(({ label, help: title }, at) => {
      const [count, ...quantiles] = times[at];
      const cells = [whole(count), ...quantiles.map(time)];
      return make(
        'tr',
        {},
        make('th', { scope: 'row', title }, label),
        ...cells.map((text) => make('td.number', {}, text)),
      );
    });
    const head = make(
      'tr',
      {},
      ...['', 'Count', 'p50', 'p90', 'p99'].map((text) => make('th.number', { scope: 'col' }, text)),
    );
    const caption = make(
      'caption',
      {},
      `Times, last ${WINDOWS.find(([key]) => Number(key) === length)[1]}`,
    );
    const parts = this.live.rows(length).find((row) => row.id === id).spent;
    const bar = make('span.spent', { role: 'img', 'aria-label': spentLines(parts).join(', ') });
    spentBar(bar, parts);
    this.table.replaceChildren(
      caption,
      make('thead', {}, head),
      make('tbody', {}, ...rows),
      make(
        'tfoot',
        {},
        make('tr', {}, make('td', { colspan: 5 }, bar, make('small', {}, spentLines(parts).join(' · ')))),
      ),
    );
  }

  // Whom the group has called, those that took the most time first.
  tellCalls(id, length) {
    const calls = this.live.calls(id, length);
    this.calls.hidden = !calls.length;
    const cell = (kind, { unit, help: title }, text) =>
      make(unit === 'text' ? kind : kind + '.number', kind === 'th' ? { scope: 'col', title } : {}, text);
    const row = (kind, text) =>
      make('tr', {}, ...FIGURES.calls.map((column, at) => cell(kind, column, text(column, at))));
    this.calls.replaceChildren(
      make(
        'caption',
        {},
        `Outgoing calls, last ${WINDOWS.find(([key]) => Number(key) === length)[1]}`,
      ),
      make('thead', {}, row('th', ({ label }) => label)),
      make(
        'tbody',
        {},
        ...calls.map((cells) => row('td', ({ unit }, at) => UNITS[unit].text(cells[at]))),
      ),
    );
  }

  // The slowest of the requests of which the trace is known, as the service's tracing names it.
  tellTraces(exemplars) {
    const traced = exemplars.filter((one) => one.trace_id).sort((a, b) => b.duration_ns - a.duration_ns);
    this.traces.hidden = !traced.length;
    this.traces.replaceChildren(
      make('caption', {}, 'Slow requests with a trace'),
      ...traced.slice(0, 5).map((one) =>
        make(
          'tr',
          {},
          make('td.trace', {}, clean(one.trace_id)),
          make('td.number', {}, time(one.duration_ns)),
          make('td.number', {}, clock(one.unix_ns / 1e6)),
          make('td', {}, clean(one.outcome ?? '')),
        ),
      ),
    );
  }

  repaint() {
    for (const chart of this.charts) chart.repaint();
    if (this.length) this.draw(this.length);
  }

  close() {
    for (const chart of this.charts) chart.close();
    this.panel.replaceChildren();
  }
}

// A series over time, by uPlot.
class Chart {
  constructor(title, name) {
    Object.assign(this, { title, name });
    this.element = make('figure.chart', {}, make('figcaption', {}, title));
    this.watcher = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.watcher.observe(this.element);
  }

  size() {
    return { width: Math.max(120, this.element.clientWidth), height: 116 };
  }

  options() {
    const [text, line] = [colour('quiet'), colour('line')];
    const grid = { stroke: line, width: 1 };
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { sync: { key: 'detail' }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      padding: [8, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 0.1)] } },
      axes: [
        {
          stroke: text,
          grid: { show: false },
          ticks: grid,
          size: 24,
          font: '11px system-ui',
          space: 90,
          values: (_, all) => all.map((at) => clock(at * 1000)),
        },
        {
          stroke: text,
          grid,
          ticks: { show: false },
          size: 48,
          font: '11px system-ui',
          space: 28,
          values: (_, all) => all.map((value) => value.toLocaleString('en')),
        },
      ],
      series: [
        {},
        {
          stroke: colour(this.name),
          fill: colour(this.name + '-back'),
          width: 1.5,
          points: { show: false },
        },
      ],
      hooks: { setCursor: [(plot) => this.tell(plot)] },
    };
  }

  tell({ cursor: { idx }, data }) {
    const at = idx ?? data[0].length - 1;
    const said = at >= 0 ? ` ${figure(data[1][at])}` : '';
    setText(this.element.firstChild, this.title + ':' + said);
  }

  draw(data) {
    this.data = data;
    if (!this.plot) this.plot = new uPlot(this.options(), data, this.element);
    else this.plot.setData(data);
    this.tell(this.plot);
  }

  repaint() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.draw(this.data);
  }

  close() {
    this.watcher.disconnect();
    this.plot?.destroy();
  }
}

const HEAT_COLUMNS = 120;
const HEAT_HEIGHT = 150;
const HEAT_LEFT = 56;

// Latencies over time: a column for some seconds, a row for each bucket, darker where more requests
// ended. The scale is that of the histogram, so no request lies between two rows.
class HeatMap {
  constructor() {
    this.canvas = make('canvas', { role: 'img' });
    this.element = make('figure.heat', {}, make('figcaption', {}, 'Latency of requests'), this.canvas);
    this.canvas.addEventListener('mousemove', (event) => this.hover(event));
    this.canvas.addEventListener('mouseleave', () => showTip(null));
  }

  // Adds up the ticks by column: as many seconds each as make all of them fit.
  gather(live, id) {
    const { ticks } = live;
    const per = Math.max(1, Math.ceil(ticks.length / HEAT_COLUMNS));
    const columns = [];
    // Columns begin at ticks that stay the same when others come: those whose second divides.
    let open = null;
    for (const tick of ticks) {
      const begins = Math.floor(tick.at / per);
      if (!open || open.begins !== begins)
        columns.push((open = { begins, at: tick.at, counts: new Map() }));
      open.until = tick.at;
      for (const [index, count] of tick.groups.get(id)?.latency || [])
        open.counts.set(index, (open.counts.get(index) || 0) + count);
    }
    return columns;
  }

  draw(live, id) {
    this.scale = FIGURES.buckets;
    this.columns = this.gather(live, id);
    const all = this.columns.flatMap(({ counts }) => [...counts]);
    const wide = Math.max(120, this.element.clientWidth);
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, {
      width: Math.round(wide * ratio),
      height: Math.round(HEAT_HEIGHT * ratio),
    });
    this.canvas.style.width = wide + 'px';
    this.canvas.style.height = HEAT_HEIGHT + 'px';
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = '11px system-ui';
    context.textBaseline = 'middle';
    context.fillStyle = colour('quiet');
    if (!all.length) {
      this.rows = null;
      context.fillText('No request has ended while this page looked.', HEAT_LEFT, HEAT_HEIGHT / 2);
      this.canvas.setAttribute('aria-label', 'No request has ended');
      return;
    }
    const low = Math.min(...all.map(([index]) => index)) - 1;
    const high = Math.max(...all.map(([index]) => index), low + 8) + 1;
    const most = Math.max(...all.map(([, count]) => count));
    const [high_px, wide_px] = [
      (HEAT_HEIGHT - 8) / (high - low + 1),
      (wide - HEAT_LEFT) / Math.max(this.columns.length, 60),
    ];
    this.rows = { low, high, high_px, wide_px };
    const y = (index) => 4 + (high - index) * high_px;
    // A line where a power of ten lies.
    for (let ns = 1e3; ns <= 1e12; ns *= 10) {
      const index = Math.log2(ns / this.scale.unit_ns) * 2 ** this.scale.scale - 1;
      if (index < low || index > high) continue;
      context.fillStyle = colour('quiet');
      context.textAlign = 'right';
      context.fillText(formatted(ns, 'nanoseconds'), HEAT_LEFT - 8, y(index));
      context.fillStyle = colour('line');
      context.fillRect(HEAT_LEFT, y(index), wide - HEAT_LEFT, 1);
    }
    context.textAlign = 'left';
    const shades = this.shades();
    this.columns.forEach(({ counts }, at) => {
      for (const [index, count] of counts) {
        context.fillStyle =
          shades[Math.min(shades.length - 1, Math.floor(Math.sqrt(count / most) * shades.length))];
        context.fillRect(
          HEAT_LEFT + at * wide_px,
          y(index),
          Math.max(1, wide_px - (wide_px > 4 ? 1 : 0)),
          Math.max(1, high_px - (high_px > 4 ? 1 : 0)),
        );
      }
    });
    this.canvas.setAttribute(
      'aria-label',
      `Latencies from ${time(bound(this.scale, low + 1))} to ${time(bound(this.scale, high))}`,
    );
  }

  shades() {
    const shade = (part) =>
      page.dark
        ? `oklch(${0.36 + 0.46 * part} ${0.06 + 0.1 * part} ${250 - 170 * part})`
        : `oklch(${0.9 - 0.46 * part} ${0.05 + 0.12 * part} ${250 + 60 * part})`;
    return Array.from({ length: 12 }, (_, at) => shade(at / 11));
  }

  hover(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const column =
      this.rows && this.columns[Math.floor((event.clientX - left - HEAT_LEFT) / this.rows.wide_px)];
    if (!column || event.clientX - left < HEAT_LEFT) return showTip(null);
    const index = this.rows.high - Math.floor((event.clientY - top - 4) / this.rows.high_px);
    const count = column.counts.get(index) || 0;
    showTip(
      [
        plural(count, 'request'),
        `${time(bound(this.scale, index))} to ${time(bound(this.scale, index + 1))}`,
        clock(column.at * 1000),
      ],
      event,
    );
  }
}
