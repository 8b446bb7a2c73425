//! `record`: a client begins, reads or ends the flight recorder. It belongs to the process, not to
//! the client.

use dormouse_keys::KeyUse;
use dormouse_protocol::{Code, RecordAnswer, RecordRequest, RecorderRow, WireError};

use super::engine::{self as recording, DEFAULT_MEMORY, RecorderError, RecorderStat};
use crate::agent::request::{bad, chosen, names, parse, time, trace_error};
use crate::agent::{Answered, Asked};
use crate::core::asleep::{Part, check};
use crate::core::probe::Probe;
use crate::core::rows::batch_stat;

impl Answered for RecordRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<RecordAnswer, WireError> {
        let told = |stat: Option<RecorderStat>| RecordAnswer {
            recorder: stat.map(RecorderRow::from),
            matched: Vec::new(),
            batch: None,
        };
        let Some(glob) = &self.glob else {
            if self.memory_bytes.is_some() || self.for_ms.is_some() {
                return Err(bad("`memory_bytes` and `for_ms` go with a `glob`"));
            }
            return Ok(told(if self.off { recording::stop(None) } else { recording::stat() }));
        };
        check(Part::Records)?;
        if self.off {
            return Err(bad("`off` and `glob` exclude each other"));
        }
        let length = time("for_ms", self.for_ms)?;
        let memory = self.memory_bytes.map_or(Ok(DEFAULT_MEMORY), usize::try_from);
        let memory = memory.map_err(|_| bad("`memory_bytes` is more than there is"))?;
        let keys: Vec<KeyUse> = chosen(&parse(glob)?)?;
        let probes = keys.iter().filter(|used| used.key.attached::<Probe>().is_some());
        let matched = names(probes);
        let (_, report) = recording::start(glob, || Ok(keys), memory, length).map_err(wire_error)?;
        Ok(RecordAnswer { matched, batch: Some(batch_stat(report)), ..told(recording::stat()) })
    }
}

fn wire_error(why: RecorderError) -> WireError {
    match why {
        RecorderError::Trace(why) => trace_error(why),
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
