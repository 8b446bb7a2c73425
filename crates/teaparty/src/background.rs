//! Work that belongs to no request, in two groups: a task that restocks, a plain thread that keeps
//! the book short.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    task::AbortHandle,
    time::{MissedTickBehavior, interval},
};

use crate::{
    instrument::{Group, probe, spawn_blocking, tracing},
    store::Store,
};

const RESTOCK_EVERY: Duration = Duration::from_millis(250);
const PRUNE_EVERY: Duration = Duration::from_millis(500);

/// The house's own work, until it is stopped.
#[derive(Debug)]
pub(crate) struct Background {
    restock: AbortHandle,
    prune: JoinHandle<()>,
    /// Closing it ends the thread.
    open: mpsc::Sender<()>,
}

impl Background {
    /// Starts both. Call inside a runtime.
    pub(crate) fn start(store: &Arc<Store>) -> io::Result<Self> {
        let (open, closed) = mpsc::channel();
        let book = Arc::clone(store);
        let prune = Group::new("housekeeping").spawn_thread(move || prune(&book, &closed))?;
        let restock = Group::new("restock").instrument(restock(Arc::clone(store)));
        let restock = tokio::spawn(restock).abort_handle();
        Ok(Self { restock, prune, open })
    }

    /// Stops both.
    pub(crate) async fn stop(self) {
        self.restock.abort();
        drop(self.open);
        // Fails only if the thread panicked; it said so then.
        let _ = spawn_blocking(move || self.prune.join()).await;
    }
}

async fn restock(store: Arc<Store>) {
    let mut clock = interval(RESTOCK_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        clock.tick().await;
        let store = Arc::clone(&store);
        match spawn_blocking(move || store.restock()).await {
            Ok(Ok(teas)) => {
                probe!("restock.done", teas);
                tracing::debug!(teas, "restocked");
            }
            Ok(Err(error)) => eprintln!("warning: not restocked: {error}"),
            Err(error) => eprintln!("warning: not restocked: {error}"),
        }
    }
}

fn prune(store: &Store, closed: &mpsc::Receiver<()>) {
    while closed.recv_timeout(PRUNE_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
        match store.prune() {
            Ok(orders) => {
                probe!("housekeeping.pruned", orders);
                tracing::debug!(orders, "book pruned");
            }
            Err(error) => eprintln!("warning: the order book was not pruned: {error}"),
        }
    }
}
