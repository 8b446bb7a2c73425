//! The database: `SQLite` in a temporary directory that goes away with the house.
//!
//! # Locking
//!
//! One connection writes, behind a mutex, because `SQLite` has one writer anyway; so
//! [`Store::place`] and the housekeeping wait for each other and belong on a thread that may wait
//! (`spawn_blocking`). The others only read and, because the log is written ahead, never wait for
//! the writer: a read takes some ten microseconds and may run on a worker. No lock is held across
//! an `await`, so there are never more readers than workers, and with one connection for each a
//! reader always finds one free.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

use anyhow::Context as _;
use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use serde::Serialize;
use tempfile::TempDir;

use crate::instrument::statement;
use crate::teas::TEAS;

/// Cups of each tea after a restock.
const FULL: u32 = 10_000;
/// Cups of a tea below which it is restocked.
const LOW: u32 = 5_000;
/// Orders that the book keeps; housekeeping forgets older ones, so a long run does not fill the
/// disk.
const BOOK: u32 = 10_000;

const SCHEMA: &str = "
    CREATE TABLE teas (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        price_pence INTEGER NOT NULL,
        notes TEXT NOT NULL,
        stock INTEGER NOT NULL CHECK (stock >= 0)
    );
    CREATE TABLE orders (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        tea INTEGER NOT NULL REFERENCES teas (id),
        cups INTEGER NOT NULL,
        price_pence INTEGER NOT NULL
    );";

/// A line of the menu.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) price_pence: u32,
    pub(crate) cups_left: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) notes: Option<String>,
}

/// An order that was taken.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Order {
    pub(crate) id: u32,
    pub(crate) tea: String,
    pub(crate) cups: u32,
    pub(crate) price_pence: u32,
}

/// Why an order was not taken.
#[derive(Debug)]
pub(crate) enum NotPlaced {
    UnknownTea,
    SoldOut { left: u32 },
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for NotPlaced {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// The menu and the order book. Fields are dropped in this order: connections before their file.
pub(crate) struct Store {
    writer: Mutex<Connection>,
    readers: Box<[Mutex<Connection>]>,
    dir: TempDir,
}

impl Store {
    /// A new house, fully stocked, for `readers` concurrent readers.
    pub(crate) fn open(readers: usize) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("teaparty-")
            .tempdir()
            .context("cannot make a directory for the database; set TMPDIR to a writable one")?;
        let path = dir.path().join("teaparty.db");
        let connect = || Connection::open(&path).with_context(|| format!("cannot open {}", path.display()));

        let mut writer = connect()?;
        seed(&mut writer).with_context(|| format!("cannot fill {}", path.display()))?;
        let readers = (0..readers.max(1))
            .map(|_| {
                let reader = connect()?;
                reader.pragma_update(None, "query_only", true)?;
                Ok(Mutex::new(reader))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { writer: Mutex::new(writer), readers, dir })
    }

    /// The menu, by name.
    pub(crate) fn menu(&self, with_notes: bool) -> rusqlite::Result<Vec<Item>> {
        let reader = self.reader();
        let text = if with_notes {
            "SELECT name, price_pence, stock, notes FROM teas ORDER BY name"
        } else {
            "SELECT name, price_pence, stock, NULL FROM teas ORDER BY name"
        };
        let item = |row: &Row<'_>| {
            Ok(Item {
                name: row.get(0)?,
                price_pence: row.get(1)?,
                cups_left: row.get(2)?,
                notes: row.get(3)?,
            })
        };
        statement(text, || reader.prepare_cached(text)?.query_map([], item)?.collect())
    }

    /// One order of the book.
    pub(crate) fn order(&self, id: u32) -> rusqlite::Result<Option<Order>> {
        let reader = self.reader();
        let text = "SELECT orders.id, teas.name, cups, orders.price_pence
                    FROM orders JOIN teas ON teas.id = orders.tea WHERE orders.id = ?1";
        let order = |row: &Row<'_>| {
            Ok(Order { id: row.get(0)?, tea: row.get(1)?, cups: row.get(2)?, price_pence: row.get(3)? })
        };
        statement(text, || reader.prepare_cached(text)?.query_row([id], order).optional())
    }

    /// Takes an order and the cups for it. May wait for another writer.
    pub(crate) fn place(&self, tea: &str, cups: u32) -> Result<Order, NotPlaced> {
        let mut writer = lock(&self.writer);
        let sale = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let text = "SELECT id, price_pence, stock FROM teas WHERE name = ?1 COLLATE NOCASE";
        let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found = statement(text, || sale.prepare_cached(text)?.query_row([tea], columns).optional())?;
        let (id, price_pence, left): (u32, u32, u32) = found.ok_or(NotPlaced::UnknownTea)?;
        if left < cups {
            return Err(NotPlaced::SoldOut { left });
        }
        let text = "UPDATE teas SET stock = stock - ?2 WHERE id = ?1";
        statement(text, || sale.prepare_cached(text)?.execute([id, cups]))?;
        let text = "INSERT INTO orders (tea, cups, price_pence) VALUES (?1, ?2, ?3)
                    RETURNING id, (SELECT name FROM teas WHERE teas.id = orders.tea), cups, price_pence";
        let order = |row: &Row<'_>| {
            Ok(Order { id: row.get(0)?, tea: row.get(1)?, cups: row.get(2)?, price_pence: row.get(3)? })
        };
        let values = [id, cups, cups * price_pence];
        let order = statement(text, || sale.prepare_cached(text)?.query_row(values, order))?;
        sale.commit()?;
        Ok(order)
    }

    /// Fills teas that run low; returns how many did. May wait for another writer.
    pub(crate) fn restock(&self) -> rusqlite::Result<usize> {
        lock(&self.writer).prepare_cached("UPDATE teas SET stock = ?1 WHERE stock < ?2")?.execute([FULL, LOW])
    }

    /// Forgets all but the latest orders; returns how many it forgot. May wait for another writer.
    pub(crate) fn prune(&self) -> rusqlite::Result<usize> {
        lock(&self.writer)
            .prepare_cached("DELETE FROM orders WHERE id <= (SELECT max(id) FROM orders) - ?1")?
            .execute([BOOK])
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        self.readers
            .iter()
            .find_map(|reader| match reader.try_lock() {
                Ok(free) => Some(free),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            })
            .unwrap_or_else(|| lock(&self.readers[0]))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir.path()).finish_non_exhaustive()
    }
}

/// A handler that panicked left no transaction behind (it rolled back as it was dropped), so the
/// connection is as good as before.
fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Journal, tables, teas, and the first order, which is the house's own.
fn seed(writer: &mut Connection) -> rusqlite::Result<()> {
    writer.pragma_update(None, "journal_mode", "WAL")?;
    // These orders need not survive a power cut, and a demo should show its own work, not the
    // disk's.
    writer.pragma_update(None, "synchronous", "OFF")?;
    let seeding = writer.transaction()?;
    seeding.execute_batch(SCHEMA)?;
    for tea in &TEAS {
        seeding.execute(
            "INSERT INTO teas (name, price_pence, notes, stock) VALUES (?1, ?2, ?3, ?4)",
            params![tea.name, tea.price_pence, tea.notes, FULL],
        )?;
    }
    seeding.execute("INSERT INTO orders (tea, cups, price_pence) VALUES (1, 1, 0)", [])?;
    seeding.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_takes_cups_and_is_booked() {
        let store = Store::open(1).unwrap();
        let order = store.place("assam", 3).unwrap();
        assert_eq!(order.tea, "Assam");
        assert_eq!(order.price_pence, 3 * TEAS[0].price_pence);
        assert_eq!(store.order(order.id).unwrap(), Some(order));
        let menu = store.menu(false).unwrap();
        assert_eq!(
            menu.iter().map(|item| item.cups_left).collect::<Vec<_>>(),
            [FULL - 3, FULL, FULL, FULL, FULL, FULL]
        );
    }

    #[test]
    fn a_refused_order_changes_nothing() {
        let store = Store::open(1).unwrap();
        assert!(matches!(store.place("coffee", 1), Err(NotPlaced::UnknownTea)));
        assert!(matches!(store.place("Assam", FULL + 1), Err(NotPlaced::SoldOut { left: FULL })));
        assert!(store.menu(false).unwrap().iter().all(|item| item.cups_left == FULL));
        assert_eq!(store.order(2).unwrap(), None);
    }

    #[test]
    fn restock_fills_only_what_runs_low() {
        let store = Store::open(1).unwrap();
        store.place("Sencha", 10).unwrap();
        assert_eq!(store.restock().unwrap(), 0);
        store.place("Assam", FULL - LOW + 1).unwrap();
        assert_eq!(store.restock().unwrap(), 1);
        let left: Vec<_> = store.menu(false).unwrap().iter().map(|item| item.cups_left).collect();
        assert_eq!(left, [FULL, FULL, FULL, FULL, FULL, FULL - 10]);
    }

    #[test]
    fn prune_keeps_the_latest_orders() {
        let store = Store::open(1).unwrap();
        lock(&store.writer)
            .execute("UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'orders'", [BOOK])
            .unwrap();
        let latest = store.place("Assam", 1).unwrap();
        assert_eq!(store.prune().unwrap(), 1);
        assert_eq!(store.order(1).unwrap(), None);
        assert_eq!(store.order(latest.id).unwrap(), Some(latest));
    }

    #[test]
    fn readers_see_committed_state_during_a_sale() {
        let store = Store::open(2).unwrap();
        let mut writer = lock(&store.writer);
        let sale = writer.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        sale.execute("UPDATE teas SET stock = 0", []).unwrap();
        assert!(store.menu(false).unwrap().iter().all(|item| item.cups_left == FULL));
    }

    #[test]
    fn the_database_goes_away_with_the_house() {
        let store = Store::open(1).unwrap();
        let dir = store.dir.path().to_owned();
        assert!(dir.exists());
        drop(store);
        assert!(!dir.exists());
    }
}
