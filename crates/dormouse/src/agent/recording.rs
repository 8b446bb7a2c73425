//! The flight recorder, for clients. It belongs to the process, not to the client.

use dormouse_keys::KeyUse;
use dormouse_protocol::{Code, RecordAnswer, RecordRequest, RecorderRow, WireError};

use super::chosen::{bad, chosen, names, parse, time, untraced};
use crate::core::probe::Probe;
use crate::core::rows::batch_stat;
use crate::features::recorder::engine::{self as recording, DEFAULT_MEMORY, RecorderError, RecorderStat};

/// Carries out a client's request, and returns the state of the recorder.
pub(super) fn answer(wish: &RecordRequest) -> Result<RecordAnswer, WireError> {
    let told = |stat: Option<RecorderStat>| RecordAnswer {
        recorder: stat.map(RecorderRow::from),
        matched: Vec::new(),
        batch: None,
    };
    let Some(glob) = &wish.glob else {
        if wish.memory_bytes.is_some() || wish.for_ms.is_some() {
            return Err(bad("`memory_bytes` and `for_ms` go with a `glob`"));
        }
        return Ok(told(if wish.off { recording::stop(None) } else { recording::stat() }));
    };
    if wish.off {
        return Err(bad("`off` and `glob` exclude each other"));
    }
    let length = time("for_ms", wish.for_ms)?;
    let memory = wish.memory_bytes.map_or(Ok(DEFAULT_MEMORY), usize::try_from);
    let memory = memory.map_err(|_| bad("`memory_bytes` is more than there is"))?;
    let keys: Vec<KeyUse> = chosen(&parse(glob)?)?;
    let probes = keys.iter().filter(|used| used.key.attached::<Probe>().is_some());
    let matched = names(probes);
    let (_, report) = recording::start(glob, || Ok(keys), memory, length).map_err(refusal)?;
    Ok(RecordAnswer { matched, batch: Some(batch_stat(report)), ..told(recording::stat()) })
}

fn refusal(why: RecorderError) -> WireError {
    match why {
        RecorderError::Trace(why) => untraced(why),
        RecorderError::Memory { .. } => bad(why.to_string()),
        why => WireError::new(Code::NoRecorder, why.to_string()),
    }
}

impl From<RecorderStat> for RecorderRow {
    fn from(stat: RecorderStat) -> Self {
        Self {
            number: stat.number,
            glob: stat.glob,
            keys: stat.keys,
            memory_bytes: stat.memory as u64,
            held_bytes: stat.held as u64,
            records: stat.records,
            aged: stat.aged,
            dropped: stat.dropped,
            kept_ns: stat.kept.map(|kept| kept.as_nanos() as u64),
            left_ms: stat.left.map(|left| left.as_nanos().div_ceil(1_000_000) as u64),
            tick_ns: stat.tick.as_nanos() as u64,
        }
    }
}
