'use strict';
// Tasks that leak, below the tasks of a process: those that nothing can wake any more, which is proved,
// and lines that spawn more and more, which are suspected. To judge growth takes the service ten seconds
// of taking the times of its tasks, so this is asked for by a button.

class LeaksPart {
  constructor(pid) {
    this.told = make('p.facts', { role: 'status', hidden: true });
    this.grid = new Grid({
      label: 'Tasks that leak',
      sort: 'tasks',
      key: (row) => [row.kind, row.file, row.line, row.column].join(),
      empty: 'No task leaks, as far as is known.',
      columns: [
        {
          id: 'kind',
          label: 'Leak',
          title: 'Proved: nothing can wake them. Suspected: there are more and more',
          width: '96px',
          narrowWidth: '88px',
          narrow: true,
          value: (row) => row.kind,
          text: (row) => row.kind,
        },
        {
          id: 'tasks',
          label: 'Tasks',
          width: '84px',
          narrowWidth: '64px',
          number: true,
          narrow: true,
          value: (row) => row.tasks,
          text: (row) => whole(row.tasks),
        },
        {
          id: 'grown',
          label: 'Grown',
          width: '130px',
          number: true,
          value: (row) => row.grown ?? 0,
          text: (row) => (row.grown === undefined ? NO : `+${whole(row.grown)} in ${time(row.grown_ns)}`),
        },
        {
          id: 'oldest',
          label: 'Oldest',
          width: '88px',
          number: true,
          roomy: true,
          value: (row) => row.oldest_ns ?? 0,
          text: (row) => (row.oldest_ns === null ? NO : time(row.oldest_ns)),
        },
        {
          id: 'spawned',
          label: 'Spawned at',
          width: 'minmax(120px, 1fr)',
          narrow: true,
          value: (row) => row.spawned,
          text: (row) => row.spawned,
        },
        {
          id: 'group',
          label: 'Group',
          width: 'minmax(100px, 1fr)',
          value: (row) => row.group,
          text: (row) => row.group,
        },
        {
          id: 'place',
          label: 'Waits at',
          width: 'minmax(120px, 2fr)',
          roomy: true,
          value: (row) => row.at,
          text: (row) => row.at,
        },
      ],
    });
    this.grid.element.classList.add('below');
    this.grid.element.hidden = true;
    this.pid = pid;
    this.button = button('Look for leaks', () => this.toggle(), { 'aria-pressed': false });
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
    setText(this.told, 'Numbers of tasks are compared for ten seconds …');
    this.grid.answered = false;
    this.poll = new Poll(
      15000,
      () => processPath(this.pid, 'tasks?leaks=1'),
      (answer) => this.take(answer),
      (error) => page.complain(error),
    );
  }

  take(answer) {
    page.complain(null);
    this.grid.answered = true;
    const places = new Map(answer.places.map(({ place, frames }) => [place, frames]));
    const rows = (kind, of) =>
      of.map((row) => ({
        ...row,
        kind,
        spawned: row.file === null ? NO : clean(`${row.file.split('/').slice(-2).join('/')}:${row.line}`),
        group: clean(row.groups.join(', ')),
        at: places.has(row.place) ? placeOf(places.get(row.place)) : kind === 'proved' ? 'nothing can wake it' : NO,
      }));
    const judged =
      answer.judged_ns === null
        ? 'Numbers of tasks were compared for too short a time to judge their growth.'
        : `Growth was judged over ${time(answer.judged_ns)}.`;
    setText(this.told, judged + ' Tasks that are proved to leak end only by an abort, or with their runtime.');
    this.grid.show([...rows('proved', answer.proven), ...rows('suspected', answer.suspected)]);
  }

  close() {
    this.poll?.close();
    this.grid.close();
  }
}
