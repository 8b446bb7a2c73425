'use strict';
// The list of all that works in this process and on this machine, with a remedy where it does not.

const ORDER = { failed: 0, limited: 1, unknown: 2, ok: 3 };

class DoctorView {
  constructor(panel, pid) {
    this.pid = pid;
    this.told = make('p.facts', { role: 'status' }, 'Looking; it takes some seconds …');
    this.list = make('table.checks');
    panel.append(
      make(
        'div.bar',
        {},
        button('Look again', () => this.look()),
      ),
      this.told,
      this.list,
    );
    this.look();
  }

  async look() {
    this.controller?.abort();
    this.controller = new AbortController();
    try {
      const { checks } = await ask(processPath(this.pid, 'doctor'), { signal: this.controller.signal });
      page.fail(null);
      this.show(checks);
    } catch (error) {
      if (error.name !== 'AbortError') page.fail(error);
    }
  }

  show(checks) {
    const bad = checks.filter(({ state }) => state !== 'ok').length;
    setText(
      this.told,
      `${plural(checks.length, 'check')}, ${bad ? `${bad} not as it could be` : 'all is well'}.`,
    );
    const rank = ({ state }) => ORDER[state] ?? 1;
    const rows = [...checks]
      .sort((a, b) => rank(a) - rank(b))
      .map(({ name, state, detail, fix }) =>
        make(
          'tr',
          { 'data-state': clean(state) },
          make('td', {}, make('span.badge', {}, clean(state))),
          make('th.name', { scope: 'row' }, clean(name)),
          make('td', {}, clean(detail || ''), fix ? make('small', {}, clean(fix)) : ''),
        ),
      );
    this.list.replaceChildren(make('tbody', {}, ...rows));
  }

  close() {
    this.controller?.abort();
  }
}
