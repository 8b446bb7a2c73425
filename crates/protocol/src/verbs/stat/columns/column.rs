//! One column.

/// A column that is read from its beginning, and has zeros behind its end.
pub(super) struct Column<T>(std::vec::IntoIter<T>);

impl<T: Default> Column<T> {
    pub(super) fn of(column: Vec<T>) -> Self {
        Self(column.into_iter())
    }

    pub(super) fn next(&mut self) -> T {
        self.0.next().unwrap_or_default()
    }
}

/// Drops a column of which no group has anything.
pub(super) fn leave_out<T: Default + PartialEq>(column: &mut Vec<T>) {
    if column.iter().all(|value| *value == T::default()) {
        *column = Vec::new();
    }
}
