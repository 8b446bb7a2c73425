//! The cord that stops everything: pulled once by a signal, by the end of standard input or by the
//! load generator, and seen by tasks of any runtime.

use std::{io, sync::Arc, thread};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// A flag that is set once. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// A flag that is not set yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag: stops everything that waits for it, now or later.
    pub fn pull(&self) {
        self.0.send_replace(true);
    }

    /// Whether the flag is set.
    pub fn is_pulled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once the flag is set.
    pub async fn pulled(&self) {
        // Fails only when the sender is gone, and we hold it.
        let _ = self.0.subscribe().wait_for(|&pulled| pulled).await;
    }

    /// Has Ctrl-C and SIGTERM pull it. Call inside a runtime.
    pub(crate) fn on_signals(&self) -> io::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            stop.pull();
        });
        Ok(())
    }

    /// Has the end of standard input pull it. A parent that holds the other end of the pipe need
    /// not do anything, not even exit cleanly: the kernel closes it.
    pub(crate) fn on_end_of_stdin(&self) -> io::Result<()> {
        let stop = self.clone();
        // A plain thread that is never joined: a blocking read cannot be cancelled, and a runtime
        // would wait for it.
        thread::Builder::new().name("stdin".into()).spawn(move || {
            // Whether the input ends or fails, the parent is gone.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            stop.pull();
        })?;
        Ok(())
    }
}
