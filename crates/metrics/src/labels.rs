//! Sets of labels: all values in one text, without an allocation for each.

/// Labels that several points share. Valid only in its exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelSet(u32);

impl LabelSet {
    /// No labels.
    pub const NONE: Self = Self(0);

    /// Its index in anything that parallels [`Labels::sets`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The sets of an exposition. The first one is empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct Labels {
    /// The end of each further set among the pairs.
    sets: Vec<usize>,
    /// The name of each label, and the end of its value among the values.
    pairs: Vec<(&'static str, usize)>,
    values: String,
}

impl Labels {
    pub(crate) fn add(&mut self, labels: &[(&'static str, &str)]) -> LabelSet {
        for &(name, value) in labels {
            self.values.push_str(value);
            self.pairs.push((name, self.values.len()));
        }
        self.sets.push(self.pairs.len());
        LabelSet(self.sets.len() as u32)
    }

    /// The labels of a set; none of one that is not of this exposition.
    pub(crate) fn of(&self, set: LabelSet) -> impl Iterator<Item = (&'static str, &str)> {
        self.at(set.index())
    }

    /// All sets, in the order of [`LabelSet::index`].
    pub(crate) fn sets(&self) -> impl Iterator<Item = impl Iterator<Item = (&'static str, &str)>> {
        (0..=self.sets.len()).map(|index| self.at(index))
    }

    fn at(&self, index: usize) -> impl Iterator<Item = (&'static str, &str)> {
        let end =
            |index: usize| index.checked_sub(1).map_or(Some(0), |before| self.sets.get(before).copied());
        let pairs = end(index).map_or(0..0, |last| end(index.saturating_sub(1)).unwrap_or(last)..last);
        pairs.map(|pair| {
            let (name, end) = self.pairs[pair];
            let start = pair.checked_sub(1).map_or(0, |before| self.pairs[before].1);
            (name, &self.values[start..end])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_has_its_own() {
        let mut labels = Labels::default();
        let one = labels.add(&[("group", "GET /"), ("state", "")]);
        let none = labels.add(&[]);
        let last = labels.add(&[("group", "ä")]);
        let of = |set| labels.of(set).collect::<Vec<_>>();
        assert_eq!(of(LabelSet::NONE), []);
        assert_eq!(of(one), [("group", "GET /"), ("state", "")]);
        assert_eq!(of(none), []);
        assert_eq!(of(last), [("group", "ä")]);
        assert_eq!(of(LabelSet(4)), [], "of another exposition");
        assert_eq!(labels.sets().map(Iterator::count).collect::<Vec<_>>(), [0, 2, 0, 1]);
    }
}
