'use strict';
// Tasks that leak: those that nothing can wake any more, which is proved, and lines that spawn more and
// more, which are suspected. To judge growth takes the service ten seconds of taking the times of its
// tasks.

class LeaksPart extends AskedPart {
  constructor(pid) {
    const grid = {
      label: 'Tasks that leak',
      sort: 'tasks',
      key: (row) => [row.kind, row.file, row.line, row.column].join(),
      empty: 'No task leaks, as far as is known.',
      columns: [
        shown('kind', 'Leak', '96px', asText, {
          title: 'Proved: nothing can wake them. Suspected: there are more and more',
          narrowWidth: '88px',
          narrow: true,
        }),
        shown('tasks', 'Tasks', '84px', whole, { narrowWidth: '64px', number: true, narrow: true }),
        shown(
          'grown',
          'Grown',
          '130px',
          (grown, row) => (grown === undefined ? NO : `+${whole(grown)} in ${time(row.grown_ns)}`),
          { number: true },
        ),
        shown('oldest_ns', 'Oldest', '88px', time, { number: true, roomy: true }),
        shown('spawned', 'Spawned at', 'minmax(120px, 1fr)', asText, { narrow: true }),
        shown('group', 'Group', 'minmax(100px, 1fr)', asText),
        shown('at', 'Waits at', 'minmax(120px, 2fr)', asText, { roomy: true }),
      ],
    };
    super(pid, grid, {
      word: 'Look for leaks',
      wait: 'Numbers of tasks are compared for ten seconds …',
      every: 15000,
      path: 'tasks?leaks=1',
    });
  }

  rows(answer) {
    const places = new Map(answer.places.map(({ place, frames }) => [place, frames]));
    const rows = (kind, of) =>
      of.map((row) => ({
        ...row,
        kind,
        spawned: row.file === null ? NO : atFile(row, 2),
        group: clean(row.groups.join(', ')),
        at: places.has(row.place) ? placeOf(places.get(row.place)) : kind === 'proved' ? 'nothing can wake it' : NO,
      }));
    const judged =
      answer.judged_ns === null
        ? 'Numbers of tasks were compared for too short a time to judge their growth.'
        : `Growth was judged over ${time(answer.judged_ns)}.`;
    return {
      told: judged + ' Tasks that are proved to leak end only by an abort, or with their runtime.',
      rows: [...rows('proved', answer.proven), ...rows('suspected', answer.suspected)],
    };
  }
}
