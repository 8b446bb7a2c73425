//! The thread or the processor for which an event is opened.

use super::error::Error;

/// The thread or the processor to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The calling thread, on any processor.
    ThisThread,
    /// The thread with this id, on any processor.
    Thread(u32),
    /// The thread of this id while it runs on this processor.
    ThreadOnCpu {
        /// The thread.
        tid: u32,
        /// The processor.
        cpu: u32,
    },
    /// All threads that run on this processor.
    Cpu(u32),
}

impl Subject {
    /// `pid` and `cpu` of the system call, in which 0 and -1 stand for the calling thread and for
    /// any.
    pub(super) fn raw(self) -> Result<(i32, i32), Error> {
        let thread = |tid| i32::try_from(tid).ok().filter(|&tid| tid > 0).ok_or(Error::NoSuchThread { tid });
        let processor = |cpu| i32::try_from(cpu).map_err(|_| Error::NoSuchCpu(cpu));
        Ok(match self {
            Self::ThisThread => (0, -1),
            Self::Thread(tid) => (thread(tid)?, -1),
            Self::ThreadOnCpu { tid, cpu } => (thread(tid)?, processor(cpu)?),
            Self::Cpu(cpu) => (-1, processor(cpu)?),
        })
    }

    pub(super) fn has_cpu(self) -> bool {
        matches!(self, Self::ThreadOnCpu { .. } | Self::Cpu(_))
    }
}
