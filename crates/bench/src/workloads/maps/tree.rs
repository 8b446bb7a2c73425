//! The ordered map under the origin's two schemes: a balanced binary tree of nodes that are walked by address.
//!
//! An AA tree: a red-black tree whose red nodes are right children only, which makes the same depths out of less
//! code. Each node has a cache line of its own, as a `vm_area_struct` has several; a walk touches one of
//! them a level, as the kernel's did.
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
    level: u32,
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
    /// The first is nobody, on level 0.
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
}

impl Tree {
    pub(super) fn new() -> Self {
        let nobody = Node { start: 0, last: 0, value: 0, left: NIL, right: NIL, level: 0 };
        Self { nodes: vec![nobody], free: Vec::new(), root: NIL }
    }

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

    /// Maps over whatever is there; whether a mapping was removed by that.
    pub(super) fn map(&mut self, start: u64, last: u64, value: u64) -> bool {
        let mut removed = false;
        while let Some(at) = self.reaching(start).filter(|&at| self.node(at).start <= last) {
            let old = *self.node(at);
            let node = &mut self.nodes[at as usize];
            if old.start < start {
                node.last = start - 1;
                if old.last > last {
                    self.insert(last + 1, old.last, old.value);
                }
            } else if old.last > last {
                node.start = last + 1;
            } else {
                self.root = self.remove(self.root, old.start);
                removed = true;
            }
        }
        self.insert(start, last, value);
        removed
    }

    /// Gives the mapping that lies in this range the range.
    pub(super) fn grow(&mut self, start: u64, last: u64) {
        if let Some(at) = self.reaching(start) {
            let node = &mut self.nodes[at as usize];
            (node.start, node.last) = (start, last);
        }
    }

    /// The lowest mapping that reaches to `addr` or beyond.
    fn reaching(&self, addr: u64) -> Option<u32> {
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            let node = self.node(at);
            if node.last >= addr {
                found = Some(at);
                at = node.left;
            } else {
                at = node.right;
            }
        }
        found
    }

    fn insert(&mut self, start: u64, last: u64, value: u64) {
        let node = Node { start, last, value, left: NIL, right: NIL, level: 1 };
        let new = if let Some(number) = self.free.pop() {
            self.nodes[number as usize] = node;
            number
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        self.root = self.insert_below(self.root, new);
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        if self.node(new).start < self.node(at).start {
            self.nodes[at as usize].left = self.insert_below(self.node(at).left, new);
        } else {
            self.nodes[at as usize].right = self.insert_below(self.node(at).right, new);
        }
        let at = self.skew(at);
        self.split(at)
    }

    /// Removes the mapping that begins at `start`, which is there.
    fn remove(&mut self, at: u32, start: u64) -> u32 {
        if at == NIL {
            return NIL;
        }
        let node = *self.node(at);
        if start < node.start {
            self.nodes[at as usize].left = self.remove(node.left, start);
        } else if start > node.start {
            self.nodes[at as usize].right = self.remove(node.right, start);
        } else if node.left == NIL {
            self.free.push(at);
            return node.right;
        } else {
            let mut before = node.left;
            while self.node(before).right != NIL {
                before = self.node(before).right;
            }
            let Node { start, last, value, .. } = *self.node(before);
            let left = self.remove(node.left, start);
            self.nodes[at as usize] = Node { start, last, value, left, ..node };
        }
        self.rebalance(at)
    }

    fn rebalance(&mut self, at: u32) -> u32 {
        let node = *self.node(at);
        let level = self.node(node.left).level.min(self.node(node.right).level) + 1;
        if level < node.level {
            self.nodes[at as usize].level = level;
            if level < self.node(node.right).level {
                self.nodes[node.right as usize].level = level;
            }
        }
        let at = self.skew(at);
        let right = self.skew(self.node(at).right);
        self.nodes[at as usize].right = right;
        if right != NIL {
            let beyond = self.skew(self.node(right).right);
            self.nodes[right as usize].right = beyond;
        }
        let at = self.split(at);
        let right = self.split(self.node(at).right);
        self.nodes[at as usize].right = right;
        at
    }

    /// A left child on the same level becomes the parent.
    fn skew(&mut self, at: u32) -> u32 {
        let left = self.node(at).left;
        if at == NIL || left == NIL || self.node(left).level != self.node(at).level {
            return at;
        }
        self.nodes[at as usize].left = self.node(left).right;
        self.nodes[left as usize].right = at;
        left
    }

    /// Of three in a row on one level, the middle one goes up.
    fn split(&mut self, at: u32) -> u32 {
        let right = self.node(at).right;
        let beyond = self.node(right).right;
        if at == NIL || beyond == NIL || self.node(at).level != self.node(beyond).level {
            return at;
        }
        self.nodes[at as usize].right = self.node(right).left;
        self.nodes[right as usize].left = at;
        self.nodes[right as usize].level += 1;
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth of the tree and number of its nodes; panics where the order or the levels are wrong.
    fn check(tree: &Tree, at: u32, low: u64, high: u64) -> (u32, usize) {
        if at == NIL {
            return (0, 0);
        }
        let node = tree.node(at);
        assert!(low <= node.start && node.start <= node.last && node.last <= high);
        let (left, right) = (tree.node(node.left), tree.node(node.right));
        assert!(left.level + 1 == node.level && (right.level == node.level || right.level + 1 == node.level));
        assert!(tree.node(right.right).level < node.level);
        let (left, right) = (
            check(tree, node.left, low, node.start.wrapping_sub(1)),
            check(tree, node.right, node.last + 1, high),
        );
        (left.0.max(right.0) + 1, left.1 + right.1 + 1)
    }

    #[test]
    fn it_says_what_an_array_of_pages_says_and_stays_balanced() {
        const PAGES: u64 = 512;
        let (mut tree, mut pages) = (Tree::new(), vec![None; PAGES as usize]);
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
            // A mapping that lay wholly inside is gone; nothing else is.
            let gone = there.iter().any(|v| {
                v.is_some_and(|v| {
                    let mut all = (0..PAGES).filter(|&page| pages[page as usize] == Some(v)).peekable();
                    all.peek().is_some() && all.all(|page| start <= page && page <= last)
                })
            });
            assert!(removed || !gone);
            pages[start as usize..=last as usize].fill(Some(value));
            let (depth, count) = check(&tree, tree.root, 0, PAGES);
            assert!(f64::from(depth) <= 2.0 * ((count + 1) as f64).log2());
        }
        for (page, value) in (0..).zip(&pages) {
            assert_eq!(tree.find(page).map(|at| tree.node(at).value), *value);
        }
    }
}
