//! The hits of one watch by their place in the code.

use std::collections::HashMap;

use dormouse_sys::perf::UserStack;

use crate::{WatchHit, WatchSite};

/// The most places that are counted separately.
const MOST_SITES: usize = 1024;

/// The most hits that wait for the reader of the stream.
const MOST_WAITING: usize = 1 << 16;

/// The recorded hits of one watch.
#[derive(Debug, Default)]
pub(super) struct Sites {
    by_ip: HashMap<usize, WatchSite>,
    /// Hits of places that found no room.
    pub(super) other: u64,
    /// All hits.
    pub(super) delivered: u64,
    /// Single hits, if they are wanted.
    stream: Option<Vec<WatchHit>>,
    /// Copied stacks of places, by their instruction, that were not asked for yet.
    stacks: Vec<(usize, UserStack)>,
    /// Hits that found no room in the stream.
    pub(super) unstreamed: u64,
}

impl Sites {
    /// Adds a hit with its copied stack; of one place in the order of time.
    pub(super) fn add(&mut self, hit: WatchHit, copied: Option<Box<UserStack>>) {
        self.delivered += 1;
        let has_room = self.by_ip.len() < MOST_SITES;
        match self.by_ip.get_mut(&hit.ip) {
            Some(site) => update(site, &hit),
            None if has_room => {
                self.stacks.extend(copied.map(|copied| (hit.ip, *copied)));
                let (stack, inner) = (hit.stack.clone(), hit.stack.len());
                let site = WatchSite { ip: hit.ip, stack, inner, ..WatchSite::default() };
                update(self.by_ip.entry(hit.ip).or_insert(site), &hit);
            }
            None => self.other += 1,
        }
        match &mut self.stream {
            Some(stream) if stream.len() < MOST_WAITING => stream.push(hit),
            Some(_) => self.unstreamed += 1,
            None => {}
        }
    }

    /// The places, the most hits first.
    pub(super) fn sorted(&self) -> Vec<WatchSite> {
        let mut sites: Vec<_> = self.by_ip.values().cloned().collect();
        sites.sort_by_key(|site| (std::cmp::Reverse(site.hits), site.ip));
        sites
    }

    /// The copied stacks of places that are new since the last call.
    pub(super) fn take_stacks(&mut self) -> Vec<(usize, UserStack)> {
        std::mem::take(&mut self.stacks)
    }

    /// The hits since the last call; the first call begins the stream.
    pub(super) fn take(&mut self) -> Vec<WatchHit> {
        self.stream.replace(Vec::new()).unwrap_or_default()
    }
}

fn update(site: &mut WatchSite, hit: &WatchHit) {
    site.hits += 1;
    (site.old, site.new) = (hit.old, hit.new);
    (site.tid, site.mono_ns) = (hit.tid, hit.mono_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(ip: usize, mono_ns: u64) -> WatchHit {
        WatchHit { ip, mono_ns, stack: vec![mono_ns as usize], ..WatchHit::default() }
    }

    #[test]
    fn a_site_has_first_stack_and_last_hit() {
        let mut sites = Sites::default();
        for (ip, time) in [(1, 10), (2, 20), (2, 30)] {
            sites.add(hit(ip, time), Some(Box::default()));
        }
        let seen: Vec<_> =
            sites.sorted().iter().map(|site| (site.ip, site.hits, site.mono_ns, site.stack[0])).collect();
        assert_eq!(seen, [(2, 2, 30, 20), (1, 1, 10, 10)]);
        assert_eq!((sites.delivered, sites.other), (3, 0));
        let stacks: Vec<_> = sites.take_stacks().into_iter().map(|(ip, _)| ip).collect();
        assert_eq!((stacks, sites.take_stacks().len()), (vec![1, 2], 0));
    }

    #[test]
    fn hits_without_room_are_counted() {
        let mut sites = Sites::default();
        sites.add(hit(0, 0), None);
        assert!(sites.take().is_empty(), "the stream begins here");
        for ip in 0..=MOST_WAITING {
            sites.add(hit(ip, 1), None);
        }
        assert_eq!(sites.by_ip.len(), MOST_SITES);
        assert_eq!(sites.other, (MOST_WAITING + 1 - MOST_SITES) as u64);
        assert_eq!((sites.take().len(), sites.unstreamed), (MOST_WAITING, 1));
        assert_eq!(sites.delivered, MOST_WAITING as u64 + 2);
    }
}
