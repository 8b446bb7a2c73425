//! A parallel iterator whose pieces are in a group.
//!
//! rayon cuts an iterator into pieces, and folds each piece on one thread from its beginning to its
//! end. Nothing is stolen inside of a piece, so the group is entered once for each. There are two
//! ways through an adaptor, and each has a value that lives as long as the piece:
//!
//! | the next in the chain | the piece's value |
//! |---|---|
//! | consumes items (`map`, `for_each`, `sum`) | the *folder*, from `into_folder` to `complete` |
//! | wants a producer (`zip`, `enumerate`, `rev`) | the producer's *iterator* |
//!
//! A piece that is dropped or unwinds leaves the group by the destructor of that value. Only a
//! consumer is also asked to put results together, and enters the group for that, too.

use ::rayon::iter::plumbing::{Consumer, Folder, Producer, ProducerCallback, Reducer, UnindexedConsumer};
use ::rayon::iter::{IndexedParallelIterator, ParallelIterator};

use super::{carried, waits};
use crate::adapt::inherit::Carried;
use crate::core::task::Entered;

/// [`in_group`](InGroup::in_group) for all parallel iterators.
///
/// ```
/// use dormouse::Group;
/// use dormouse::rayon::InGroup as _;
/// use rayon::prelude::*;
///
/// let report = Group::new("report");
/// report.scope(|| {
///     let here = |_| assert_eq!(Group::current(), Some(report));
///     (0..100).into_par_iter().in_group().for_each(here);
/// });
/// ```
pub trait InGroup: ParallelIterator {
    /// Charges the iterator's pieces to the group that is current here, on whichever worker they
    /// are.
    ///
    /// Put it last before the method that consumes the iterator: then what puts results together is
    /// charged, too. Before `zip`, `enumerate` and others that need positions only the items are.
    ///
    /// ```
    /// use dormouse::Group;
    /// use dormouse::rayon::InGroup as _;
    /// use rayon::prelude::*;
    ///
    /// let words = ["tea", "milk", "sugar"];
    /// let report = Group::new("report");
    /// let lengths: Vec<_> = report.scope(|| {
    ///     words.par_iter().map(|word| (word.len(), Group::current())).in_group().collect()
    /// });
    /// assert_eq!(lengths, [(3, Some(report)), (4, Some(report)), (5, Some(report))]);
    /// ```
    #[track_caller]
    fn in_group(self) -> Grouped<Self> {
        Grouped { base: self, group: carried() }
    }
}

impl<I: ParallelIterator> InGroup for I {}

/// A parallel iterator whose pieces are in a group; see [`InGroup::in_group`].
#[derive(Debug, Clone)]
#[must_use = "iterator adaptors are lazy and do nothing unless consumed"]
pub struct Grouped<I> {
    base: I,
    group: Carried,
}

impl<I: ParallelIterator> ParallelIterator for Grouped<I> {
    type Item = I::Item;

    fn drive_unindexed<C: UnindexedConsumer<I::Item>>(self, consumer: C) -> C::Result {
        let Self { base, group } = self;
        waits(|| base.drive_unindexed(Pieces { base: consumer, group }))
    }

    fn opt_len(&self) -> Option<usize> {
        self.base.opt_len()
    }
}

impl<I: IndexedParallelIterator> IndexedParallelIterator for Grouped<I> {
    fn drive<C: Consumer<I::Item>>(self, consumer: C) -> C::Result {
        let Self { base, group } = self;
        waits(|| base.drive(Pieces { base: consumer, group }))
    }

    fn len(&self) -> usize {
        self.base.len()
    }

    fn with_producer<C: ProducerCallback<I::Item>>(self, callback: C) -> C::Output {
        let Self { base, group } = self;
        waits(|| base.with_producer(Pieces { base: callback, group }))
    }
}

/// A consumer, a producer, a callback that takes one, or a reducer, whose pieces are in a group.
struct Pieces<T> {
    base: T,
    group: Carried,
}

/// One piece, inside of the group: a folder or an iterator.
struct Piece<T> {
    // Dropped in this order: inside of the group.
    base: T,
    entered: Option<Entered>,
}

impl<T> Pieces<T> {
    fn begin<U>(self, begin: impl FnOnce(T) -> U) -> Piece<U> {
        let entered = self.group.enter();
        Piece { base: begin(self.base), entered }
    }
}

impl<T> Piece<T> {
    /// Ends inside of the group.
    fn end<U>(self, end: impl FnOnce(T) -> U) -> U {
        let Self { base, entered: _entered } = self;
        end(base)
    }
}

impl<T, C: Consumer<T>> Consumer<T> for Pieces<C> {
    type Folder = Piece<C::Folder>;
    type Reducer = Pieces<C::Reducer>;
    type Result = C::Result;

    fn split_at(self, index: usize) -> (Self, Self, Self::Reducer) {
        let Self { base, group } = self;
        let (left, right, reducer) = base.split_at(index);
        (Self { base: left, group }, Self { base: right, group }, Pieces { base: reducer, group })
    }

    fn into_folder(self) -> Self::Folder {
        self.begin(C::into_folder)
    }

    fn full(&self) -> bool {
        self.base.full()
    }
}

impl<T, C: UnindexedConsumer<T>> UnindexedConsumer<T> for Pieces<C> {
    fn split_off_left(&self) -> Self {
        Self { base: self.base.split_off_left(), group: self.group }
    }

    fn to_reducer(&self) -> Self::Reducer {
        Pieces { base: self.base.to_reducer(), group: self.group }
    }
}

impl<T, R: Reducer<T>> Reducer<T> for Pieces<R> {
    fn reduce(self, left: T, right: T) -> T {
        self.begin(|base| base.reduce(left, right)).base
    }
}

impl<T, F: Folder<T>> Folder<T> for Piece<F> {
    type Result = F::Result;

    fn consume(self, item: T) -> Self {
        Self { base: self.base.consume(item), entered: self.entered }
    }

    fn consume_iter<I: IntoIterator<Item = T>>(self, iter: I) -> Self {
        Self { base: self.base.consume_iter(iter), entered: self.entered }
    }

    fn complete(self) -> F::Result {
        self.end(F::complete)
    }

    fn full(&self) -> bool {
        self.base.full()
    }
}

impl<T, C: ProducerCallback<T>> ProducerCallback<T> for Pieces<C> {
    type Output = C::Output;

    fn callback<P: Producer<Item = T>>(self, producer: P) -> C::Output {
        self.base.callback(Pieces { base: producer, group: self.group })
    }
}

impl<P: Producer> Producer for Pieces<P> {
    type Item = P::Item;
    type IntoIter = Piece<P::IntoIter>;

    fn into_iter(self) -> Self::IntoIter {
        self.begin(P::into_iter)
    }

    fn min_len(&self) -> usize {
        self.base.min_len()
    }

    fn max_len(&self) -> usize {
        self.base.max_len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let Self { base, group } = self;
        let (left, right) = base.split_at(index);
        (Self { base: left, group }, Self { base: right, group })
    }
}

impl<I: Iterator> Iterator for Piece<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.base.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.base.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<I::Item> {
        self.base.nth(n)
    }

    fn count(self) -> usize {
        self.end(I::count)
    }

    fn fold<B, F: FnMut(B, I::Item) -> B>(self, init: B, f: F) -> B {
        self.end(|base| base.fold(init, f))
    }
}

impl<I: DoubleEndedIterator> DoubleEndedIterator for Piece<I> {
    fn next_back(&mut self) -> Option<I::Item> {
        self.base.next_back()
    }

    fn nth_back(&mut self, n: usize) -> Option<I::Item> {
        self.base.nth_back(n)
    }

    fn rfold<B, F: FnMut(B, I::Item) -> B>(self, init: B, f: F) -> B {
        self.end(|base| base.rfold(init, f))
    }
}

impl<I: ExactSizeIterator> ExactSizeIterator for Piece<I> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// An iterator that has better ways than one item after the other.
    struct Jumps;

    impl Iterator for Jumps {
        type Item = usize;

        fn next(&mut self) -> Option<usize> {
            unreachable!("one by one");
        }

        fn nth(&mut self, n: usize) -> Option<usize> {
            Some(n)
        }

        fn count(self) -> usize {
            7
        }

        fn fold<B, F: FnMut(B, usize) -> B>(self, init: B, mut f: F) -> B {
            f(init, 8)
        }
    }

    impl DoubleEndedIterator for Jumps {
        fn next_back(&mut self) -> Option<usize> {
            unreachable!("one by one");
        }

        fn nth_back(&mut self, n: usize) -> Option<usize> {
            Some(n)
        }

        fn rfold<B, F: FnMut(B, usize) -> B>(self, init: B, mut f: F) -> B {
            f(init, 9)
        }
    }

    #[test]
    fn pieces_keep_the_ways_of_their_iterators() {
        let piece = || Piece { base: Jumps, entered: None };
        assert_eq!([piece().nth(3), piece().nth_back(4)], [Some(3), Some(4)]);
        let add = |sum: usize, n: usize| sum + n;
        assert_eq!([piece().count(), piece().fold(1, add), piece().rfold(1, add)], [7, 9, 10]);
    }
}
