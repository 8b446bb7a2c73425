//! Interprocessor interrupts as the kernel counts them.
//!
//! `/proc/interrupts` has one column a processor, and a row for each kind of interrupt, which is
//! found by its description, because its name differs between processors. *Function call
//! interrupts* (x86: `CAL`, arm64: `IPI1`) are sent by a core synchronisation. *TLB shootdowns*
//! (x86: `TLB`) flush other processors' address translations, as a change of page permissions does.
//! Such a flush travels as a function call, so since Linux 4.8 the first row includes the second.
//! arm64 has no second row: its processors flush the others' translations without an interrupt.
//! The counts are those of the whole machine.

use std::fs;

const CALLS: &str = "Function call interrupts";
const FLUSHES: &str = "TLB shootdowns";

/// The two counts of interest, of one processor or summed over all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipis {
    /// Function call interrupts.
    pub cal: u64,
    /// TLB shootdowns; `None` where the kernel counts none.
    pub tlb: Option<u64>,
}

impl Ipis {
    /// Reads the counts of all processors.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be read.
    pub fn read() -> Result<Self, String> {
        Self::of(&text()?, |counts| Some(counts.iter().fold(0, |sum: u64, one| sum.saturating_add(*one))))
    }

    /// Reads the counts of one processor.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be read.
    pub fn read_of(cpu: usize) -> Result<Self, String> {
        let text = text()?;
        let column = column(&text, cpu);
        Self::of(&text, |counts| counts.get(column?).copied())
            .map_err(|why| format!("{why} of processor {cpu}"))
    }

    fn of(text: &str, pick: impl Fn(&[u64]) -> Option<u64>) -> Result<Self, String> {
        let count = |what| row(text, what).and_then(|counts| pick(&counts));
        let cal = count(CALLS).ok_or_else(|| format!("/proc/interrupts has no count of \"{CALLS}\""))?;
        Ok(Self { cal, tlb: count(FLUSHES) })
    }

    /// The shootdowns, or why there are none to count.
    ///
    /// # Errors
    ///
    /// The kernel has no such row.
    pub fn flushes(self) -> Result<u64, String> {
        self.tlb.ok_or_else(|| format!("/proc/interrupts has no count of \"{FLUSHES}\""))
    }

    /// Interrupts since `earlier`; 0 for a count that wrapped.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let tlb = self.tlb.zip(earlier.tlb).map(|(now, then)| now.saturating_sub(then));
        Self { cal: self.cal.saturating_sub(earlier.cal), tlb }
    }
}

fn text() -> Result<String, String> {
    fs::read_to_string("/proc/interrupts").map_err(|error| format!("cannot read /proc/interrupts: {error}"))
}

/// The counts of the row with this description, one a processor that is online.
fn row(text: &str, what: &str) -> Option<Vec<u64>> {
    text.lines().find_map(|line| {
        let (_, counts) = line.trim_end().strip_suffix(what)?.split_once(':')?;
        counts.split_whitespace().map(|count| count.parse().ok()).collect()
    })
}

/// A processor's place in each row. Processors that are offline have none.
fn column(text: &str, cpu: usize) -> Option<usize> {
    let heading = text.lines().next()?;
    heading
        .split_whitespace()
        .position(|word| word.strip_prefix("CPU").and_then(|number| number.parse().ok()) == Some(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "           CPU0       CPU1       \n \
        24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
        NMI:          0          0   Non-maskable interrupts\n\
        RES:       7869       7903   Rescheduling interrupts\n\
        CAL:      32546      28575   Function call interrupts\n\
        TLB:       6415       5859   TLB shootdowns\n\
        ERR:          0\n";

    const ARM64: &str = "           CPU0       CPU2       \n \
        11:       2315       2404     GICv3  27 Level     arch_timer\n\
        IPI0:       391        412       Rescheduling interrupts\n\
        IPI1:        57         61       Function call interrupts\n\
        IPI2:         0          0       CPU stop interrupts\n\
        Err:          0\n";

    fn sums(text: &str) -> Result<Ipis, String> {
        Ipis::of(text, |counts| Some(counts.iter().sum()))
    }

    #[test]
    fn each_processor_kinds_rows_are_found() {
        assert_eq!(sums(X86), Ok(Ipis { cal: 32_546 + 28_575, tlb: Some(6415 + 5859) }));
        let ipis = sums(ARM64).unwrap();
        assert_eq!(ipis, Ipis { cal: 57 + 61, tlb: None });
        assert!(ipis.flushes().unwrap_err().contains(FLUSHES));
    }

    #[test]
    fn a_processor_is_found_by_the_heading() {
        assert_eq!([0, 1, 2].map(|cpu| column(X86, cpu)), [Some(0), Some(1), None]);
        assert_eq!([0, 1, 2].map(|cpu| column(ARM64, cpu)), [Some(0), None, Some(1)]);
        assert_eq!(row(ARM64, CALLS), Some(vec![57, 61]));
    }

    #[test]
    fn a_row_without_its_counts_is_none() {
        for text in ["", "CAL: 5 Function calls\n", "CAL: 5 more Function call interrupts\n"] {
            assert!(sums(text).unwrap_err().contains(CALLS), "{text}");
        }
        assert!(Ipis::of("CAL: Function call interrupts\n", |counts| counts.first().copied()).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a file of the kernel's")]
    fn this_kernels_rows_are_found() {
        match Ipis::read() {
            Ok(ipis) => assert_eq!(ipis.tlb.is_some(), cfg!(target_arch = "x86_64")),
            Err(why) => dormouse_testkit::skip(&why),
        }
    }

    #[test]
    fn a_count_that_went_backwards_gives_zero() {
        let (early, late) = (Ipis { cal: 9, tlb: Some(1) }, Ipis { cal: 4, tlb: Some(5) });
        assert_eq!(late.since(early), Ipis { cal: 0, tlb: Some(4) });
    }
}
