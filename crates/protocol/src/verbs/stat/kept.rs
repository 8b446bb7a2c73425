//! Exemplars that a client has kept, for answers that leave them out.

use dormouse_statistics::buckets::{POWERS, SCALE, place};

use super::{GroupRow, Stat};
use crate::verbs::waits::{ExemplarRow, HistogramRow, bucket_index};

impl Stat {
    /// Adds the exemplars of `before`, the answer whose `mono_ns` was sent as `exemplars_since_ns`.
    /// Of each power of two it adds the one of `before` if this answer has none. Both answers have
    /// rows of groups ([`Stat::expand`]).
    pub fn keep_exemplars(&mut self, before: &Self) {
        let same = self.groups.iter_mut().zip(&before.groups).filter(|(now, before)| now.id == before.id);
        for (now, before) in same {
            if let (Some(now), Some(before)) = (requests_of(now), &before.waits) {
                let new = std::mem::take(&mut now.exemplars);
                let before = &before.requests;
                now.exemplars = if new.is_empty() && before.scale == now.scale {
                    before.exemplars.clone()
                } else {
                    joined(now.scale, new, &before.exemplars)
                };
            }
        }
    }
}

fn requests_of(group: &mut GroupRow) -> Option<&mut HistogramRow> {
    Some(&mut group.waits.as_mut()?.requests)
}

/// The new exemplars of a histogram with that scale, and those of `before` in other powers of two.
/// Both lists are in the order of buckets.
fn joined(scale: i32, new: Vec<ExemplarRow>, before: &[ExemplarRow]) -> Vec<ExemplarRow> {
    let bucket = |of: &ExemplarRow| bucket_index(place(of.duration_ns));
    let power = |of: &ExemplarRow| bucket(of) >> SCALE;
    let wider = SCALE.saturating_sub(scale).clamp(0, 31);
    let mut all = Vec::with_capacity(new.len().max(before.len()));
    let mut new = new.into_iter().peekable();
    for old in before {
        all.extend(std::iter::from_fn(|| new.next_if(|next| power(next) < power(old))));
        all.push(new.next_if(|next| power(next) == power(old)).unwrap_or_else(|| ExemplarRow {
            // The earlier answer may have had finer buckets.
            index: bucket(old) >> wider,
            ..old.clone()
        }));
    }
    all.extend(new);
    // A peer may send any list, again and again.
    all.truncate(POWERS);
    all
}

#[cfg(test)]
mod tests {
    use dormouse_statistics::buckets::EXPORTED_SCALE;

    use super::*;
    use crate::verbs::waits::WaitsRow;

    fn exemplar(duration_ns: u64, task: u64, scale: i32) -> ExemplarRow {
        let index = bucket_index(place(duration_ns)) >> (SCALE - scale);
        ExemplarRow { index, task, duration_ns, ..ExemplarRow::default() }
    }

    fn stat(scale: i32, exemplars: &[(u64, u64)]) -> Stat {
        let exemplars = exemplars.iter().map(|&(ns, task)| exemplar(ns, task, scale)).collect();
        let requests = HistogramRow { scale, exemplars, ..HistogramRow::default() };
        let waits = Some(Box::new(WaitsRow { requests, ..WaitsRow::default() }));
        let groups = [1, 2].map(|id| GroupRow { id, waits: waits.clone(), ..GroupRow::default() });
        Stat { groups: groups.into(), ..Stat::default() }
    }

    #[test]
    fn exemplars_left_out_are_those_of_before() {
        let before = stat(SCALE, &[(1_000, 1), (100_000, 3), (9_000_000, 5)]);
        let mut now = stat(EXPORTED_SCALE, &[(400, 7), (110_000, 9), (80_000_000, 11)]);
        now.groups[1].id = 3;
        let other = now.groups[1].clone();
        now.keep_exemplars(&before);
        let all = [(400, 7), (1_000, 1), (110_000, 9), (9_000_000, 5), (80_000_000, 11)];
        assert_eq!(now.groups[0], stat(EXPORTED_SCALE, &all).groups[0]);
        assert_eq!(now.groups[1], other, "another group");
    }

    #[test]
    fn no_list_of_a_peer_grows_for_ever() {
        let mut now = stat(SCALE, &[(1_000, 1); 30]);
        for duration_ns in [9_000_000, 1_000, 9_000_000] {
            let before = now;
            now = stat(SCALE, &[(duration_ns, 1); 30]);
            now.keep_exemplars(&before);
        }
        assert_eq!(now.groups[0].waits.as_ref().unwrap().requests.exemplars.len(), POWERS);
    }
}
