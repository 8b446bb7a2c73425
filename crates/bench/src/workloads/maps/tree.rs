//! The ordered map under the origin's schemes: a balanced binary tree of nodes that are walked by
//! address.
//!
//! Only look-ups are timed, so a change links all nodes anew, and the depth is the least possible;
//! that of the kernel's red-black tree is about the same. Each node has a cache line of its own, as
//! a `vm_area_struct` has several; a walk touches one line for each level, as the kernel's did.
//!
//! # Invariants
//!
//! Nodes do not overlap and are ordered by address; a number stays that of the same mapping until a
//! [`Tree::map`] says that something was removed.

/// No node.
pub(super) const NIL: u32 = 0;

/// A mapping in the tree.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) start: u64,
    pub(super) last: u64,
    pub(super) value: u64,
    left: u32,
    right: u32,
}

impl Node {
    #[inline]
    pub(super) fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr <= self.last
    }
}

/// The mappings of a process.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// The first one stands for none.
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// The numbers of the nodes in the tree, by address.
    order: Vec<u32>,
    root: u32,
}

impl Default for Tree {
    fn default() -> Self {
        let none = Node { start: 0, last: 0, value: 0, left: NIL, right: NIL };
        Self { nodes: vec![none], free: Vec::new(), order: Vec::new(), root: NIL }
    }
}

impl Tree {
    #[inline]
    pub(super) fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// The mapping that `addr` lies in.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u32> {
        let mut at = self.root;
        while at != NIL {
            let node = self.node(at);
            if addr > node.last {
                at = node.right;
            } else if addr >= node.start {
                return Some(at);
            } else {
                at = node.left;
            }
        }
        None
    }

    /// Maps over old mappings; returns whether one was removed by that.
    pub(super) fn map(&mut self, start: u64, last: u64, value: u64) -> bool {
        let (mut place, mut removed) = (self.reaching(start), false);
        while let Some(&at) = self.order.get(place) {
            let old = *self.node(at);
            let node = &mut self.nodes[at as usize];
            if old.start > last {
                break;
            } else if old.start < start {
                node.last = start - 1;
                place += 1;
                if old.last > last {
                    self.insert(place, last + 1, old.last, old.value);
                }
            } else if old.last > last {
                node.start = last + 1;
            } else {
                self.free.push(self.order.remove(place));
                removed = true;
            }
        }
        self.insert(place, start, last, value);
        self.root = self.link(0, self.order.len());
        removed
    }

    /// Gives the mapping that lies in this range the range.
    pub(super) fn grow(&mut self, start: u64, last: u64) {
        if let Some(&at) = self.order.get(self.reaching(start)) {
            let node = &mut self.nodes[at as usize];
            (node.start, node.last) = (start, last);
        }
    }

    /// The place in the order of the lowest mapping that reaches to `addr` or beyond.
    fn reaching(&self, addr: u64) -> usize {
        self.order.partition_point(|&at| self.node(at).last < addr)
    }

    fn insert(&mut self, place: usize, start: u64, last: u64, value: u64) {
        let node = Node { start, last, value, left: NIL, right: NIL };
        let number = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        });
        self.nodes[number as usize] = node;
        self.order.insert(place, number);
    }

    /// Makes a tree of a part of the order; returns its root.
    fn link(&mut self, low: usize, high: usize) -> u32 {
        if low == high {
            return NIL;
        }
        let middle = low.midpoint(high);
        let [left, right] = [self.link(low, middle), self.link(middle + 1, high)];
        let at = self.order[middle];
        let node = &mut self.nodes[at as usize];
        (node.left, node.right) = (left, right);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth of the tree and number of its nodes; panics where the order is wrong.
    fn check(tree: &Tree, at: u32, low: u64, high: u64) -> (u32, usize) {
        if at == NIL {
            return (0, 0);
        }
        let node = tree.node(at);
        assert!(low <= node.start && node.start <= node.last && node.last <= high);
        let left = check(tree, node.left, low, node.start.wrapping_sub(1));
        let right = check(tree, node.right, node.last + 1, high);
        (left.0.max(right.0) + 1, left.1 + right.1 + 1)
    }

    #[test]
    fn it_agrees_with_pages_and_stays_balanced() {
        const PAGES: u64 = 512;
        let (mut tree, mut pages) = (Tree::default(), vec![None; PAGES as usize]);
        let mut random = 1_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for value in 0..4000 {
            let start = below(PAGES);
            let last = (start + below(if value % 7 == 0 { 60 } else { 4 })).min(PAGES - 1);
            let there = pages[start as usize..=last as usize].to_vec();
            let removed = tree.map(start, last, value);
            // A mapping that lay wholly inside is gone, and no other.
            let gone = there.iter().any(|v| {
                v.is_some_and(|v| {
                    let mut all = (0..PAGES).filter(|&page| pages[page as usize] == Some(v)).peekable();
                    all.peek().is_some() && all.all(|page| start <= page && page <= last)
                })
            });
            assert!(removed || !gone);
            pages[start as usize..=last as usize].fill(Some(value));
            let (depth, count) = check(&tree, tree.root, 0, PAGES);
            assert_eq!(depth, (count + 1).next_power_of_two().ilog2());
        }
        for (page, value) in (0..).zip(&pages) {
            assert_eq!(tree.find(page).map(|at| tree.node(at).value), *value);
        }
    }
}
