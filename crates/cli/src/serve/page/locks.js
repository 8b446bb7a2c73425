'use strict';
// The locks of `dormouse::sync` for which the process waits, with their holders, and the queues of
// others. They are noted for a second of each look.

const HOLDERS = { before: '(before)', unknown: '(unknown)', others: '(others)' };

// The first two names with their shares of the time.
function sharing(all, name) {
  const sum = all.reduce((sum, { wait_ns: ns }) => sum + ns, 0);
  const named = all.slice(0, 2).map((one) => name(one) + (all[1] ? ` ${share((100 * one.wait_ns) / sum)}` : ''));
  return clean(named.concat(all[2] ? `${all.length - 2} more` : []).join(', ')) || NO;
}

class LocksPart extends AskedPart {
  constructor(pid) {
    const number = { number: true };
    const grid = {
      label: 'Locks',
      sort: 'waited',
      key: (row) => [row.place.file, row.place.line, row.place.column, row.place.kind, row.place.name].join(),
      empty: 'No lock of dormouse::sync was taken.',
      tip: (row, column) => column === 'where' && row.stack,
      columns: [
        shown('lock', 'Lock', 'minmax(90px, 1fr)', asText, { title: 'The type of its value', narrow: true }),
        shown('where', 'Where', 'minmax(110px, 1fr)', asText, { title: 'The line that takes it', narrow: true }),
        shown('waited', 'Waited', '88px', (ns) => (ns ? time(ns) + '/s' : NO), { ...number, narrow: true }),
        shown('by', 'By', 'minmax(110px, 2fr)', asText, { roomy: true }),
        shown('held', 'Held by', 'minmax(110px, 2fr)', asText, { title: 'When the waits began', narrow: true }),
        shown('wait_p99_ns', 'p99', '80px', time, number),
        shown('wait_max_ns', 'Longest', '170px', (ns, row) => time(ns) + row.blamed, number),
      ],
    };
    super(pid, grid, {
      word: 'Look at locks',
      wait: 'Locks are noted for a second …',
      every: 5000,
      path: 'locks?for=1s',
    });
  }

  rows(answer) {
    const group = (of) => of.group ?? '(no group)';
    const rows = answer.locks.map((row) => ({
      ...row,
      lock: clean(row.place.name.split('::').pop() || row.place.kind),
      where: atFile(row.place),
      waited: (row.wait_ns / answer.for_ns) * 1e9,
      by: sharing(row.waited_by, group),
      held: sharing(row.held_by, (of) => HOLDERS[of.by] ?? group(of)),
      blamed: row.longest?.place ? ` at ${atFile(row.longest.place)}` : '',
    }));
    const { waiters, waiters_omitted: left, deadlocks, queues } = answer;
    for (const { kind, pool, place, longest_ns: ns, waiting, by } of queues ?? []) {
      rows.push({
        place: { ...place, kind },
        lock: `${clean(pool ?? '')} ${kind}: ${plural(waiting, 'task')} now`,
        where: place.file ? atFile(place) : clean(place.function),
        waited: 0,
        by: sharing(by.map((of) => ({ ...of, wait_ns: of.tasks })), group),
        held: HOLDERS.unknown,
        wait_max_ns: ns,
        blamed: '',
      });
    }
    const waits = waiters.length ? ` ${plural(waiters.length + left, 'wait')} now, for up to ${time(waiters[0].for_ns)}.` : '';
    const word = (of) => (of.unsure ? 'may be a deadlock' : 'deadlock');
    const stuck = deadlocks.flatMap((of) => of.blocked.map((one) => ({ ...one, word: word(of) })));
    for (const { waiter, holder, frames, no_stack: why, word } of stuck) {
      rows.push({
        place: { ...waiter.place, kind: `deadlock ${waiter.number}` },
        lock: `${word}: ${clean(waiter.place.name.split('::').pop() || waiter.place.kind)}`,
        where: atFile(waiter.place),
        stack: why ? [`no stack: ${why}`] : frameLines(frames),
        waited: 1e9,
        by: clean(group(waiter)),
        held: clean(`${group(holder)} at ${atFile(holder.place)}`),
        wait_max_ns: waiter.for_ns,
        blamed: '',
      });
    }
    const certain = deadlocks.filter((of) => !of.unsure).length;
    const dead = certain ? ` ${plural(certain, 'deadlock')}.` : '';
    return { told: `Locks were noted for ${time(answer.for_ns)}.${waits}${dead}`, rows };
  }
}
